"""Shared pool: engines of one base model, and usually one trainer, that several runs of a namespace use.

The identity of a pool contains a digest of its Deployments, so the pods of a pool never change: after a change of the
RLModel or the settings, new attempts get a new pool, and the old pool is deleted once its last run has left. The
operator sends the list of runs to the sidecars and the trainer, so a new run restarts nothing.

The trainer is shared if it is one process (`Trainer.is_shareable`). Otherwise each run has its own.
"""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from rlrun.api.model import Inference, RLModelSpec
from rlrun.constants import IDLE_ANNOTATION, INFERENCE_PORT, ROLE_LABEL, SIDECAR_PORT, TRAINER_PORT, Role
from rlrun.kube.objects import Obj
from rlrun.protocol.access import TOKEN_VARIABLE
from rlrun.protocol.shared_pool import ORDER_DIR, ORDER_FILE, ORDER_KEY, TRAINER_ORDER_KEY, PoolOrder, TrainerOrder
from rlrun.protocol.storage_access import StorageRole

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.engine_access import SharedEngine, shared_engine_with_access, token_variable
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.base.object_digest import digest_of
from rlrun_operator.resources.base.pod_templates import disk_volume, service
from rlrun_operator.resources.inference import ADAPTERS_DIR, lora_args
from rlrun_operator.resources.network import EVERYTHING, build_policy, model_egress, scrapes, system_peer, tcp_ports
from rlrun_operator.resources.platform import secret, service_account
from rlrun_operator.resources.serving_pool import (
    ROLE,
    PoolEngines,
    PoolIdentity,
    build_deployment,
    engine_deployment,
    with_digests,
)
from rlrun_operator.resources.trainer import COMPONENT, TrainerParts, trainer_service, trainer_template

DIGEST_LENGTH = 8
LORAS_PER_RUN = 3
"""Number of policies per run in one batch: most requests use the newest policy or one of the two before it."""
MAX_LORAS = 32
"""Maximum number of policies in one batch of an engine. vLLM reserves GPU memory for each."""
POLICIES_PER_RUN = 12
"""Number of policies per run that an engine keeps in CPU memory: `policies_in_use` with the default of
`maxOffPolicySteps`, evaluation and validation. Other policies are read from the engine's disk again.
"""
MAX_SEQUENCES = 256
"""Maximum number of requests in one batch of each copy of the model in an engine, if `inference.extraArgs` does not set
it. vLLM's own default depends on the GPU.
"""
SEQUENCES_FLAG = "--max-num-seqs"
USAGE_FLAG = "--enable-prompt-tokens-details"  # cached tokens, for the usage of runs (`rlrun.protocol.pool_usage`)
BODY_BYTES = 1024**2
"""Maximum bytes of a request's body in addition to the bytes of its tokens."""
BYTES_PER_TOKEN = 64
"""Bytes of a request's body per token: about 8 for the token's id and 4 for its text. The rest is for characters that
JSON escapes, and for text that the model's template drops, such as the reasoning of earlier turns.
"""
MAX_BODY = 64 * 1024**2
"""Maximum size of a request's body in bytes, as in the gateway."""
DEATHS_DIR = "/var/spool/rlrun"
DEATHS_FILE = f"{DEATHS_DIR}/deaths.json"
"""File in which the trainer counts how often each run has crashed it. The file survives a restart of the container, but
not the deletion of the pod.
"""
DEATHS_VOLUME = "spool"
DEATHS_SIZE = "1Mi"
UPLOADS_SIZE = 64 * 1024**3
"""Maximum total size in bytes of the snapshots that wait for upload, over all runs of the trainer."""
LEAST_UPLOADS = 1024**3
"""Smallest limit on one run's snapshots that wait for upload, in bytes, however many runs share the trainer."""
MAX_DIGESTS = 256
"""Maximum number of RLModels whose digests are cached. Computing a digest takes a millisecond."""
_digests: OrderedDict[tuple[str, int], tuple[OperatorSettings, str]] = OrderedDict()
"""Settings and digest, by the RLModel's JSON and the `id()` of the settings. The entry keeps the settings alive, so
their `id()` is not reused.
"""


@dataclass(frozen=True)
class PoolOrders:
    """Lists of a pool's runs for its processes. The `TrainerOrder` omits runs with `driver: Client` that have no
    configuration yet.
    """

    engines: PoolOrder
    trainer: TrainerOrder | None
    """List of runs for the trainer, or None if the pool has no trainer."""


def shared_pool(namespace: str, model: RLModelSpec, settings: OperatorSettings) -> PoolIdentity:
    """Return the pool of the namespace for the current RLModel and settings."""
    key = model.model_dump_json(), id(settings)
    if key not in _digests:
        _digests[key] = settings, _pool_digest(model, settings)
        if len(_digests) > MAX_DIGESTS:
            _digests.popitem(last=False)
    return PoolIdentity(namespace, model.id, _digests[key][1])


def _pool_digest(model: RLModelSpec, settings: OperatorSettings) -> str:
    # Neither the namespace nor the keys of the platform distinguish the pods of two pools.
    unnamed = PoolIdentity("", model.id, "0" * DIGEST_LENGTH)
    storage = StorageAccess(settings, b"", "", unnamed.name)
    made = shared_deployments(unnamed, settings, model, storage, token="")
    return digest_of([deployment["spec"] for deployment in made])[:DIGEST_LENGTH]


def pool_named(namespace: str, model: str, name: str) -> PoolIdentity:
    """Return the identity of the shared pool with this name."""
    return PoolIdentity(namespace, model, name[-DIGEST_LENGTH:])


def max_loras(model: RLModelSpec) -> int:
    """Return the number of policies in one batch of an engine."""
    return min(MAX_LORAS, LORAS_PER_RUN * model.sharing.max_runs)


def max_sequences(inference: Inference) -> int:
    """Return the number of requests in one batch of each copy of the model, from `extraArgs` or else MAX_SEQUENCES."""
    found = MAX_SEQUENCES
    for argument, following in pairwise([*inference.extra_args, ""]):
        name, equals, value = argument.partition("=")
        # vLLM accepts underscores, and abbreviations that mean only this flag.
        name = name.replace("_", "-")
        if name.startswith("--max-num-s") and SEQUENCES_FLAG.startswith(name):
            text = value if equals else following
            found = int(text) if text.isdecimal() and int(text) else MAX_SEQUENCES
    return found


def upload_bytes(model: RLModelSpec) -> int:
    """Return the maximum total size in bytes of one run's snapshots that wait for upload."""
    return max(LEAST_UPLOADS, UPLOADS_SIZE // model.sharing.max_runs)


def max_body(model: RLModelSpec) -> int:
    """Return the maximum size in bytes of the body of a request with `seqLen` tokens."""
    return min(MAX_BODY, BODY_BYTES + BYTES_PER_TOKEN * model.seq_len)


def shared_pool_children(
    identity: PoolIdentity,
    settings: OperatorSettings,
    model: RLModelSpec,
    storage: StorageAccess,
    token: str,
    orders: PoolOrders,
) -> list[Obj]:
    """Return all objects of a pool with runs, dependencies first."""
    deployments = shared_deployments(identity, settings, model, storage, token)
    return [*pool_dependencies(identity, settings, token, orders), *with_digests(deployments)]


def pool_dependencies(
    identity: PoolIdentity,
    settings: OperatorSettings,
    token: str,
    orders: PoolOrders,
    idle_since: datetime | None = None,
) -> list[Obj]:
    """Return the objects that the pool's pods need. These objects do not depend on the RLModel."""
    ports = {"openai": INFERENCE_PORT, "sidecar": SIDECAR_PORT}
    return with_digests(
        [
            pool_account(identity, idle_since),
            order_secret(identity, token, orders),
            *([shared_network_policy(identity, settings)] if settings.network_policies else []),
            # As for a run's own engines, unready pods are published, and the orchestrator checks each sidecar.
            service(identity, identity.name, ROLE, identity.component, ports, headless=True, unready=True),
            *([] if orders.trainer is None else [trainer_service(identity, identity.trainer)]),
        ]
    )


def pool_account(identity: PoolIdentity, idle_since: datetime | None = None) -> Obj:
    """Return the ServiceAccount of the pods. If `idle_since`, the time since which the pool has had no run, is given,
    an annotation stores it.
    """
    account = service_account(identity)
    if idle_since is not None:
        time = idle_since.astimezone(UTC).replace(microsecond=0)
        account["metadata"]["annotations"][IDLE_ANNOTATION] = time.isoformat().replace("+00:00", "Z")
    return account


def order_secret(identity: PoolIdentity, token: str, orders: PoolOrders) -> Obj:
    """Return the Secret with the pool's token and lists of runs, which sidecars and trainer read when they start."""
    named = {ORDER_KEY: orders.engines, **({} if orders.trainer is None else {TRAINER_ORDER_KEY: orders.trainer})}
    # Without fields that are None: processes of a former version refuse fields that they do not know.
    texts = {key: order.model_dump_json(by_alias=True, exclude_none=True) for key, order in named.items()}
    return secret(identity, identity.token_secret, {TOKEN_VARIABLE: token, **texts})


def order_volume(identity: PoolIdentity, key: str) -> Obj:
    """Return the volume with the pool's `PoolOrder` or `TrainerOrder`. The token in the same Secret is not part of the
    volume.
    """
    return {"secret": {"secretName": identity.token_secret, "items": [{"key": key, "path": key}]}}


def shared_network_policy(identity: PoolIdentity, settings: OperatorSettings) -> Obj:
    """Return the NetworkPolicy of a shared pool.

    Engine, sidecar and trainer accept connections from the orchestrators of the namespace's runs, and from the
    platform's pods, such as operator and rlrun-tinker. The trainer also accepts connections from the pool's engines.
    User code of the namespace has no access. Egress is restricted if the settings define destinations.
    """
    orchestrators, trainers = (
        {"podSelector": {"matchLabels": {ROLE_LABEL: role.value}}} for role in (Role.orchestrator, Role.trainer)
    )
    engines = {"podSelector": {"matchLabels": identity.selector(ROLE)}}
    ingress = [
        {
            "from": [orchestrators, system_peer(settings)],
            "ports": tcp_ports(INFERENCE_PORT, SIDECAR_PORT, TRAINER_PORT),
        },
        # Engines load policies from the trainer while S3 is unreachable.
        {"from": [engines], "ports": tcp_ports(TRAINER_PORT)},
        *scrapes(settings, SIDECAR_PORT, TRAINER_PORT),
    ]
    egress = model_egress(settings)
    if EVERYTHING not in egress:
        egress = [{"to": [trainers], "ports": tcp_ports(TRAINER_PORT)}, *egress]
    return build_policy(identity.metadata(identity.name), {"matchLabels": identity.selector()}, ingress, egress)


def deployment_names(identity: PoolIdentity, model: RLModelSpec) -> list[str]:
    """Return the names of the pool's Deployments: the engines' first, then the trainer's if it is shared."""
    return [identity.name, *([identity.trainer] if model.trainer.is_shareable else [])]


def shared_deployments(
    identity: PoolIdentity, settings: OperatorSettings, model: RLModelSpec, storage: StorageAccess, token: str
) -> list[Obj]:
    """Return the Deployments of engines and trainer, which do not depend on the runs."""
    engines = _engines(identity, settings, model, storage, token)
    if not model.trainer.is_shareable:
        return [engines]
    return [engines, _trainer(identity, settings, model, storage, token)]


def _trainer(
    identity: PoolIdentity, settings: OperatorSettings, model: RLModelSpec, storage: StorageAccess, token: str
) -> Obj:
    parts = TrainerParts(
        # A grant for each run is sent with the order.
        client=storage.client(StorageRole.trainer, with_grant=False),
        env={
            "RLRUN_SLOTS": str(model.sharing.max_runs),
            "RLRUN_RECOVERY_SECONDS": str(model.sharing.recovery_seconds),
            "RLRUN_UPLOAD_BYTES": str(upload_bytes(model)),
            "RLRUN_ORDER_PATH": f"{ORDER_DIR}/{TRAINER_ORDER_KEY}",
            "RLRUN_DEATHS_FILE": DEATHS_FILE,
        },
        token_env=[token_variable(identity.token_secret)],
        volumes={"order": order_volume(identity, TRAINER_ORDER_KEY), DEATHS_VOLUME: disk_volume(DEATHS_SIZE)},
        mounts={DEATHS_VOLUME: DEATHS_DIR},
        read_only_mounts={"order": ORDER_DIR},
    )
    template = trainer_template(identity, settings, model, storage, parts)
    # Two trainers of one pool must not write at the same time, and would need two GPUs.
    spec = {"replicas": 1, "strategy": {"type": "Recreate"}, "template": template}
    return build_deployment(identity, identity.trainer, Role.trainer, COMPONENT, spec, (token,))


def _engines(
    identity: PoolIdentity, settings: OperatorSettings, model: RLModelSpec, storage: StorageAccess, token: str
) -> Obj:
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
        order=order_volume(identity, ORDER_KEY),
        order_dir=ORDER_DIR,
        secrets=(token,),
    )
    return engine_deployment(identity, settings, model, storage, engines)
