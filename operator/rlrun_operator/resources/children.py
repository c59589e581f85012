"""All Kubernetes objects of one attempt of a run."""

from collections.abc import Mapping
from typing import Any

from rlrun.protocol.access import ENVIRONMENT_TOKEN_VARIABLE
from rlrun.protocol.resolved import ResolvedRun

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.egress import EgressAccess
from rlrun_operator.resources.environment import environment, environment_entries, wants_egress
from rlrun_operator.resources.inference import inference
from rlrun_operator.resources.naming import RunIdentity
from rlrun_operator.resources.network import network_policies
from rlrun_operator.resources.orchestrator import orchestrator
from rlrun_operator.resources.platform import config_map, s3_secret, service_account
from rlrun_operator.resources.run_tokens import token_variables
from rlrun_operator.resources.trainer import trainer

Obj = dict[str, Any]

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label that assigns a workload to a LocalQueue of Kueue."""


def children(
    identity: RunIdentity,
    settings: OperatorSettings,
    resolved: ResolvedRun,
    s3_variables: Mapping[str, str],
    *,
    egress: EgressAccess | None = None,
    token_key: bytes | None = None,
) -> list[Obj]:
    """Return all children of one attempt, dependencies first.

    Args:
        identity: Names and labels of the children.
        settings: Settings of the operator.
        resolved: Configuration of the attempt.
        s3_variables: The AWS_* variables.
        egress: Without it, environments that list hosts outside of the cluster are left out.
        token_key: Key of the tokens that the run's processes ask each other for. None: they ask for none.
    """
    proxy = settings.egress if wants_egress(resolved.spec) else None
    tokens = token_variables(token_key, identity.uid) if token_key else {}
    found = [
        service_account(identity),
        s3_secret(identity, {**s3_variables, **tokens}),
        config_map(identity, resolved),
        *(
            network_policies(identity, settings.lease_namespace, settings.dns, proxy)
            if settings.network_policies
            else []
        ),
    ]
    for item in environment_entries(resolved.spec):
        if egress is not None or not item.entry.egress:
            token = tokens.get(ENVIRONMENT_TOKEN_VARIABLE)
            found += environment(identity, settings, resolved, item, egress=egress, token=token)
    found += trainer(identity, settings, resolved)
    found += inference(identity, settings, resolved)
    found += orchestrator(identity, settings, resolved)
    if queue := resolved.spec.queue_name:
        for child in found:
            if child["kind"] in ("Deployment", "Job"):
                child["metadata"]["labels"][QUEUE_LABEL] = queue
    return found
