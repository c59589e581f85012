"""Inference replicas: vLLM, and the sidecar that loads policies."""

from collections.abc import Sequence

from rlrun.api.model import Inference, RLModelSpec
from rlrun.constants import INFERENCE_PORT, SIDECAR_PORT, Role
from rlrun.kube.objects import Obj
from rlrun.protocol.policy import PolicyKind
from rlrun.protocol.resolved import ResolvedRun
from rlrun.protocol.storage_access import StorageRole

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.engine_access import (
    ACCESS_DIR,
    MIDDLEWARE,
    VOLUME,
    access_volume,
    installer,
    run_engine_with_access,
)
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.base.pod_templates import (
    MODEL_DIR,
    container,
    disk_volume,
    has_read_only_root,
    http_probes,
    model_resources,
    pod_template,
    replica_set,
    resources_of,
    service,
    shared_memory,
    token_env_from,
)
from rlrun_operator.resources.models.gpu_container import gpu_checks
from rlrun_operator.resources.models.model_caches import CACHE_DIR, cache_env, cache_volume
from rlrun_operator.resources.models.model_caches import VOLUME as CACHE
from rlrun_operator.resources.models.model_variables import role_variables
from rlrun_operator.resources.models.model_volumes import model_storage, weights

STARTUP_SECONDS = 2700
"""Time limit in seconds for loading, compiling and capturing graphs of a large model."""
SIDECAR_STARTUP_SECONDS = 600
"""Time limit in seconds for the start of a sidecar, which is slow while engines load models."""
ADAPTERS_DIR = "/adapters"
NO_MEDIA_DOMAIN = "none.invalid"
"""Only host from which engines may load images, audio and video. It never exists, because `invalid` is reserved (RFC
2606).
"""


def engine_args(resolved: ResolvedRun) -> list[str]:
    """Return vLLM's arguments, with a LoRA slot for each policy in use. Full fine-tuning needs no slots."""
    model, spec = resolved.model, resolved.spec
    return serve_args(model, lora_args(model, spec.policies_in_use) if spec.lora.enabled else [])


def lora_args(model: RLModelSpec, adapters: int) -> list[str]:
    """Return vLLM's arguments for up to `adapters` adapters in one batch."""
    return [
        "--enable-lora",
        "--max-loras", str(adapters),
        "--max-lora-rank", str(vllm_max_lora_rank(model.lora.rank)),
    ]  # fmt: skip


def serve_args(model: RLModelSpec, lora: Sequence[str]) -> list[str]:
    """Return vLLM's arguments, including `lora`. The RLModel's extraArgs, which contain no `OWNED_FLAGS`, come last."""
    return [
        MODEL_DIR,
        "--served-model-name", model.id,
        "--port", str(INFERENCE_PORT),
        *lora,
        "--max-model-len", str(model.seq_len),
        "--logprobs-mode", "processed_logprobs",
        "--middleware", MIDDLEWARE,
        "--allowed-media-domains", NO_MEDIA_DOMAIN,
        *parallel_args(model.inference),
        *model.inference.extra_args,
    ]  # fmt: skip


def parallel_args(shape: Inference) -> list[str]:
    """Return vLLM's arguments that parallelize an engine over the GPUs of its pod."""
    sizes = {
        "--tensor-parallel-size": shape.parallelism.tensor_size(shape.gpus),
        "--pipeline-parallel-size": shape.parallelism.pipeline,
        "--data-parallel-size": shape.parallelism.data,
    }
    args = [text for flag, size in sizes.items() if size > 1 for text in (flag, str(size))]
    # By default vLLM starts a server for each copy of the model, and refuses to load adapters, because they would be
    # loaded in only one copy. A single server sends commands to all copies, and each request to the least loaded one.
    return [*args, *(["--api-server-count", "1"] if shape.parallelism.data > 1 else [])]


def listen_args(settings: OperatorSettings) -> list[str]:
    """Return vLLM's arguments for its listen address.

    vLLM's default is all IPv4 addresses. `::` means all addresses of both families on most nodes, but fails on nodes
    without IPv6, which do not exist in a cluster with IPv6 addresses.
    """
    return ["--host", "::"] if settings.ip_family == "IPv6" else []


def engine_url(settings: OperatorSettings) -> str:
    """Return the URL at which other containers of the pod reach the engine."""
    return f"http://{'[::1]' if settings.ip_family == 'IPv6' else '127.0.0.1'}:{INFERENCE_PORT}"


def policy_kind(resolved: ResolvedRun) -> PolicyKind:
    """Return the kind of the run's policies: adapters or full weights."""
    return PolicyKind.adapter if resolved.spec.lora.enabled else PolicyKind.weights


def engine_env(kind: PolicyKind) -> dict[str, str]:
    """Return the variables of vLLM's container, including the one that enables the routes that the sidecar calls."""
    # VLLM_SERVER_DEV_MODE enables /pause, /collective_rpc and other routes, which the middleware protects by the token.
    routes = "VLLM_ALLOW_RUNTIME_LORA_UPDATING" if kind is PolicyKind.adapter else "VLLM_SERVER_DEV_MODE"
    return {
        routes: "True" if kind is PolicyKind.adapter else "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        **cache_env(),
    }


def vllm_max_lora_rank(rank: int) -> int:
    """Return the smallest value of vLLM's `--max-lora-rank` that allows adapters of `rank` (at most 512)."""
    return next(r for r in (8, 16, 32, 64, 128, 256, 320, 512) if r >= rank)


def engine(
    settings: OperatorSettings, model: RLModelSpec, args: Sequence[str], kind: PolicyKind, weights_mount: Obj
) -> Obj:
    """Return vLLM's container, which reads policies from the volume `adapters`. The access middleware is added
    separately.
    """
    shape = model.inference
    made = container(
        "vllm",
        settings.images.inference,
        own_image=shape.image,
        args=[*args, *listen_args(settings)],
        env=engine_env(kind),
        extra_env=role_variables(shape.env),
        ports={"openai": INFERENCE_PORT},
        mounts={"shm": "/dev/shm", CACHE: CACHE_DIR},
        read_only_mounts={"adapters": ADAPTERS_DIR},
        resources=model_resources(shape),
        probes=engine_probes("openai"),
        read_only_root=has_read_only_root(settings, shape),
    )
    made["volumeMounts"].append(weights_mount)
    return made


def engine_checks(settings: OperatorSettings, shape: Inference) -> list[Obj]:
    """Return the init containers that install the access middleware and check the GPUs."""
    check = ["python3", f"{ACCESS_DIR}/rlrun_engine_access/gpu_check.py"]
    mounts = {VOLUME: ACCESS_DIR}
    return [
        installer(settings),
        *gpu_checks(settings, shape, Role.inference, settings.images.inference, check, mounts),
    ]


def engine_probes(port: str) -> Obj:
    """Return the probes of vLLM's container.

    When the engine's process dies, vLLM's server closes its port and waits for open calls, even after SIGTERM; a call
    that loads an adapter never ends. Since a busy server still accepts connections, a closed port is a reliable sign of
    failure, so the liveness probe fails within seconds instead of the minutes of `http_probes`.
    """
    probes = http_probes(port, startup_seconds=STARTUP_SECONDS, ready_path="/health", live_path="/health")
    probes["livenessProbe"] = {
        "tcpSocket": {"port": port},
        "periodSeconds": 5,
        "timeoutSeconds": 5,
        "failureThreshold": 3,
        "terminationGracePeriodSeconds": 5,
    }
    return probes


def engine_grace(settings: OperatorSettings, shape: Inference) -> int:
    """Return the grace period in seconds of pods with an engine."""
    return shape.termination_grace_period_seconds or settings.termination_grace_period_seconds.inference


def engine_volumes(settings: OperatorSettings, shape: Inference) -> dict[str, Obj]:
    """Return the volumes of vLLM's container, except the model volume."""
    return {
        "adapters": disk_volume(model_storage(settings, shape)),
        **cache_volume(settings, shape),
        "shm": shared_memory(settings, shape),
        **access_volume(),
    }


def inference(
    identity: RunIdentity, settings: OperatorSettings, resolved: ResolvedRun, storage: StorageAccess
) -> list[Obj]:
    """Return the ReplicaSet and the headless Service of the inference replicas."""
    shape = resolved.model.inference
    model = weights(settings, resolved.model, shape, storage)
    client = storage.client(StorageRole.inference)
    kind = policy_kind(resolved)
    vllm = engine(settings, resolved.model, engine_args(resolved), kind, model.mount)
    vllm = run_engine_with_access(vllm, identity.token_secret)
    sidecar = container(
        "sidecar",
        settings.images.orchestrator,
        command=["python", "-m", "rlrun_adapter_sidecar.policies"],
        env={
            "RLRUN_ADAPTERS_DIR": ADAPTERS_DIR,
            "RLRUN_ENGINE_URL": engine_url(settings),
            "RLRUN_POLICY_KIND": kind.value,
            **client.env,
        },
        env_from=token_env_from(identity),
        ports={"sidecar": SIDECAR_PORT},
        mounts={"adapters": ADAPTERS_DIR},
        read_only_mounts=client.mounts,
        resources=resources_of(settings.sidecar_resources),
        probes=http_probes("sidecar", startup_seconds=SIDECAR_STARTUP_SECONDS),
    )
    template = pod_template(
        identity,
        settings,
        Role.inference,
        "inference",
        containers=[vllm, sidecar],
        storage=model_storage(settings, shape),
        init_containers=[*engine_checks(settings, shape), *model.init_containers],
        volumes={**model.volumes, **engine_volumes(settings, shape), **client.volumes},
        priority_class=resolved.spec.priority_class_name,
        shapes=[shape],
        patch=shape.pod_template,
        grace_seconds=engine_grace(settings, shape),
    )
    ports = {"openai": INFERENCE_PORT, "sidecar": SIDECAR_PORT}
    return [
        replica_set(identity, identity.inference, Role.inference, "inference", shape.replicas, template),
        # Publish unready pods, because DNS caching for about 30 s would delay new replicas. The orchestrator checks
        # each replica's sidecar before it sends requests.
        service(identity, identity.inference, Role.inference, "inference", ports, headless=True, unready=True),
    ]
