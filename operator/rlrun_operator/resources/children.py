"""All Kubernetes objects of one attempt of a run."""

from collections.abc import Mapping
from typing import Any

from rlrun.protocol.resolved import ResolvedRun

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.environment import environment, environment_entries
from rlrun_operator.resources.inference import inference
from rlrun_operator.resources.naming import RunIdentity
from rlrun_operator.resources.network import network_policies
from rlrun_operator.resources.orchestrator import orchestrator
from rlrun_operator.resources.platform import config_map, s3_secret, service_account
from rlrun_operator.resources.trainer import trainer

Obj = dict[str, Any]

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label that assigns a workload to a LocalQueue of Kueue."""


def children(
    identity: RunIdentity, settings: OperatorSettings, resolved: ResolvedRun, s3_variables: Mapping[str, str]
) -> list[Obj]:
    """Return all children of one attempt, dependencies first."""
    found = [
        service_account(identity),
        s3_secret(identity, s3_variables),
        config_map(identity, resolved),
        *(network_policies(identity, settings.lease_namespace) if settings.network_policies else []),
    ]
    for item in environment_entries(resolved.spec):
        found += environment(identity, settings, resolved, item)
    found += trainer(identity, settings, resolved)
    found += inference(identity, settings, resolved)
    found += orchestrator(identity, settings, resolved)
    if queue := resolved.spec.queue_name:
        for child in found:
            if child["kind"] in ("Deployment", "Job"):
                child["metadata"]["labels"][QUEUE_LABEL] = queue
    return found
