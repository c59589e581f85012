"""All Kubernetes objects of one attempt of a run."""

from rlrun.constants import Driver
from rlrun.kube.objects import Obj
from rlrun.protocol.access import ENVIRONMENT_TOKEN_VARIABLE
from rlrun.protocol.resolved import ResolvedRun

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.egress import EgressAccess
from rlrun_operator.resources.access.run_tokens import token_variables
from rlrun_operator.resources.access.storage_access import StorageAccess, sign_references
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.environment import environment, environment_entries
from rlrun_operator.resources.inference import inference
from rlrun_operator.resources.network import network_policies
from rlrun_operator.resources.orchestrator import orchestrator
from rlrun_operator.resources.platform import config_map, secret, service_account
from rlrun_operator.resources.trainer import trainer


def children(
    identity: RunIdentity,
    settings: OperatorSettings,
    resolved: ResolvedRun,
    storage_key: bytes,
    *,
    egress: EgressAccess | None = None,
    token_key: bytes | None = None,
    trusts_references: bool = True,
) -> list[Obj]:
    """Return all children of one attempt, dependencies first.

    Args:
        identity: Names and labels of the children.
        settings: Settings of the operator.
        resolved: Configuration of the attempt.
        storage_key: Key that signs the grants for rlrun-server.
        egress: If None, environments that list hosts outside the cluster are omitted.
        token_key: Key from which the tokens of the run's processes are derived. If None, they require no tokens.
        trusts_references: False if users may have replaced the base model or the checkpoint that the operator resolved.
            Pods then get no access to either.
    """
    tokens = token_variables(token_key, identity.uid) if token_key else {}
    signature = sign_references(storage_key, identity, resolved) if trusts_references else ""
    config = config_map(identity, resolved, signature)
    if resolved.spec.driver is Driver.client:
        # The run has no pods. The operator reads the configuration for the order of the pool's trainer.
        return [config]
    objects = [
        service_account(identity),
        secret(identity, identity.token_secret, tokens),
        config,
        *(network_policies(identity, settings, resolved) if settings.network_policies else []),
    ]
    for item in environment_entries(resolved.spec):
        if egress is not None or not item.entry.egress:
            token = tokens.get(ENVIRONMENT_TOKEN_VARIABLE)
            objects += environment(identity, settings, resolved, item, egress=egress, token=token)
    storage = StorageAccess.of_run(identity, settings, resolved, storage_key, trusts_references=trusts_references)
    if not resolved.trains_in_pool:
        objects += trainer(identity, settings, resolved, storage)
    if resolved.endpoints.pool is None:
        objects += inference(identity, settings, resolved, storage)
    objects += orchestrator(identity, settings, resolved, storage)
    return objects
