"""Shared pool: engines of one base model that sample for several runs of a namespace.

The identity of a pool contains a digest of its Deployment, so the engines of a pool never change: after a change of the
RLModel or the settings, new attempts get a new pool, and the old pool ends with its last run. The operator sends the
list of runs to the sidecars, so a new run restarts nothing.
"""

from datetime import UTC, datetime
from itertools import pairwise

from rlrun.api.model import Inference, RLModelSpec
from rlrun.constants import IDLE_ANNOTATION, INFERENCE_PORT, ROLE_LABEL, SIDECAR_PORT, TRAINER_PORT, Role
from rlrun.kube.objects import Obj
from rlrun.protocol.access import TOKEN_VARIABLE
from rlrun.protocol.shared_pool import ORDER_DIR, ORDER_FILE, ORDER_KEY, PoolOrder

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.engine_access import SharedEngine, shared_engine_with_access
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.base.object_digest import digest_of
from rlrun_operator.resources.base.pod_templates import service
from rlrun_operator.resources.inference import ADAPTERS_DIR, lora_args
from rlrun_operator.resources.network import EVERYTHING, build_policy, model_egress, scrapes, system_peer, tcp_ports
from rlrun_operator.resources.platform import secret, service_account
from rlrun_operator.resources.serving_pool import ROLE, PoolEngines, PoolIdentity, engine_deployment, with_digests

DIGEST_LENGTH = 8
LORAS_PER_RUN = 3
"""Policies of a run in one batch: most requests use the newest policy or one of the two before it."""
MAX_LORAS = 32
"""Maximum number of policies in one batch of an engine. vLLM reserves GPU memory for each."""
POLICIES_PER_RUN = 12
"""Policies of a run in CPU memory: `policies_in_use` with the default of `maxOffPolicySteps`, evaluation and
validation. The engine reads others from its disk again.
"""
MAX_SEQUENCES = 256
"""Number of requests in one batch of an engine if `inference.extraArgs` does not set it. vLLM's own default depends on
the GPU.
"""
SEQUENCES_FLAG = "--max-num-seqs"
USAGE_FLAG = "--enable-prompt-tokens-details"  # cached tokens, for the usage of runs (`rlrun.protocol.pool_usage`)
BODY_BYTES = 1024**2
"""Bytes of a request's body besides those of its tokens."""
BYTES_PER_TOKEN = 64
"""Bytes of a request's body per token: about 8 for the token's id and 4 for its text. The rest is for characters that
JSON escapes, and for text that the model's template drops, such as the reasoning of earlier turns.
"""
MAX_BODY = 64 * 1024**2
"""Maximum size of a request's body in bytes, as in the gateway."""


def shared_pool(namespace: str, model: RLModelSpec, settings: OperatorSettings) -> PoolIdentity:
    """Return the pool of the namespace for the current RLModel and settings."""
    unnamed = PoolIdentity(namespace, model.id, "0" * DIGEST_LENGTH)
    # Neither the namespace nor the keys of the platform distinguish the pods of two pools.
    storage = StorageAccess(settings, b"", "", unnamed.name)
    spec = shared_deployment(unnamed, settings, model, storage, token="")["spec"]
    return PoolIdentity(namespace, model.id, digest_of(spec)[:DIGEST_LENGTH])


def pool_named(namespace: str, model: str, name: str) -> PoolIdentity:
    """Return the identity of the shared pool with this name."""
    return PoolIdentity(namespace, model, name[-DIGEST_LENGTH:])


def max_loras(model: RLModelSpec) -> int:
    """Return the number of policies in one batch of an engine."""
    return min(MAX_LORAS, LORAS_PER_RUN * model.sharing.max_runs)


def max_sequences(inference: Inference) -> int:
    """Return the number of requests in one batch of each copy of the model: that of `extraArgs`, or MAX_SEQUENCES."""
    found = MAX_SEQUENCES
    for argument, following in pairwise([*inference.extra_args, ""]):
        name, equals, value = argument.partition("=")
        # vLLM accepts underscores, and abbreviations that mean only this flag.
        name = name.replace("_", "-")
        if name.startswith("--max-num-s") and SEQUENCES_FLAG.startswith(name):
            text = value if equals else following
            found = int(text) if text.isdecimal() and int(text) else MAX_SEQUENCES
    return found


def max_body(model: RLModelSpec) -> int:
    """Return the maximum size in bytes of the body of a request with `seqLen` tokens."""
    return min(MAX_BODY, BODY_BYTES + BYTES_PER_TOKEN * model.seq_len)


def shared_pool_children(
    identity: PoolIdentity,
    settings: OperatorSettings,
    model: RLModelSpec,
    storage: StorageAccess,
    token: str,
    order: PoolOrder,
) -> list[Obj]:
    """Return all objects of a pool with runs, dependencies first."""
    deployment = shared_deployment(identity, settings, model, storage, token)
    return [*engine_dependencies(identity, settings, token, order), *with_digests([deployment])]


def engine_dependencies(
    identity: PoolIdentity,
    settings: OperatorSettings,
    token: str,
    order: PoolOrder,
    idle_since: datetime | None = None,
) -> list[Obj]:
    """Return the objects of a pool that its engines need. They do not depend on the RLModel."""
    ports = {"openai": INFERENCE_PORT, "sidecar": SIDECAR_PORT}
    return with_digests(
        [
            pool_account(identity, idle_since),
            order_secret(identity, token, order),
            *([shared_network_policy(identity, settings)] if settings.network_policies else []),
            # As for a run's own engines, unready pods are published, and the orchestrator checks each sidecar.
            service(identity, identity.name, ROLE, identity.component, ports, headless=True, unready=True),
        ]
    )


def pool_account(identity: PoolIdentity, idle_since: datetime | None = None) -> Obj:
    """Return the ServiceAccount of the pods, with the time since which the pool has no run."""
    account = service_account(identity)
    if idle_since is not None:
        time = idle_since.astimezone(UTC).replace(microsecond=0)
        account["metadata"]["annotations"][IDLE_ANNOTATION] = time.isoformat().replace("+00:00", "Z")
    return account


def order_secret(identity: PoolIdentity, token: str, order: PoolOrder) -> Obj:
    """Return the Secret with the pool's token and its order, which the sidecar reads when it starts."""
    text = order.model_dump_json(by_alias=True)
    return secret(identity, identity.token_secret, {TOKEN_VARIABLE: token, ORDER_KEY: text})


def shared_network_policy(identity: PoolIdentity, settings: OperatorSettings) -> Obj:
    """Return the policy that allows the orchestrators of the namespace's runs to reach engine and sidecar, and the
    operator to reach the sidecar.

    User code of the namespace has no access. Egress is restricted if the settings define destinations.
    """
    orchestrators, trainers = (
        {"podSelector": {"matchLabels": {ROLE_LABEL: role.value}}} for role in (Role.orchestrator, Role.trainer)
    )
    ingress = [
        {"from": [orchestrators], "ports": tcp_ports(INFERENCE_PORT, SIDECAR_PORT)},
        {"from": [system_peer(settings)], "ports": tcp_ports(SIDECAR_PORT)},
        *scrapes(settings, SIDECAR_PORT),
    ]
    egress = model_egress(settings)
    if EVERYTHING not in egress:
        # Engines load policies from the trainer while S3 is unreachable.
        egress = [{"to": [trainers], "ports": tcp_ports(TRAINER_PORT)}, *egress]
    return build_policy(identity.metadata(identity.name), {"matchLabels": identity.selector()}, ingress, egress)


def shared_deployment(
    identity: PoolIdentity, settings: OperatorSettings, model: RLModelSpec, storage: StorageAccess, token: str
) -> Obj:
    """Return the Deployment of the engines, which does not depend on the runs."""
    loras = max_loras(model)
    cpu_loras = str(max(loras, POLICIES_PER_RUN * model.sharing.max_runs))
    sequences = max_sequences(model.inference)
    shared = SharedEngine(
        order_file=f"{ADAPTERS_DIR}/{ORDER_FILE}",
        max_loras=loras,
        max_sequences=sequences * model.inference.parallelism.data,
        max_body=max_body(model),
    )
    engines = PoolEngines(
        replicas=model.sharing.engines,
        shapes=[model.inference],
        # Arguments of the RLModel follow these and take precedence.
        lora_args=[*lora_args(model, loras), "--max-cpu-loras", cpu_loras, SEQUENCES_FLAG, str(sequences), USAGE_FLAG],
        add_access=lambda vllm: shared_engine_with_access(vllm, identity.token_secret, shared),
        sidecar="rlrun_adapter_sidecar.pools",
        sidecar_env={},
        order={
            "secret": {"secretName": identity.token_secret, "items": [{"key": ORDER_KEY, "path": ORDER_KEY}]},
        },
        order_dir=ORDER_DIR,
        secrets=(token,),
    )
    return engine_deployment(identity, settings, model, storage, engines)
