"""The inference replicas: the stock vLLM image, and beside it the sidecar that brings the policies."""

from typing import Any

from rlrun.resources.naming import RunIdentity
from rlrun.resources.pods import (
    MODEL_DIR,
    container,
    deployment,
    http_probes,
    pod_template,
    resources_of,
    s3_env_from,
    service,
)
from rlrun.resources.settings import Settings
from rlrun.resources.weights import weights
from rlrun.schema.resolved import ResolvedRun
from rlrun.schema.wire import INFERENCE_PORT, SIDECAR_PORT, PolicyKind

Obj = dict[str, Any]

STARTUP_SECONDS = 2700
"""Loading, compiling and capturing graphs of a big model."""
ADAPTERS_DIR = "/adapters"


def engine_args(resolved: ResolvedRun) -> list[str]:
    """vLLM's command line.

    A rollout may be drawn from any of the last maxAsyncLevel policies while the newest is in use and the next is being
    loaded: hence two adapters more than maxAsyncLevel. Evaluation and validation go on with one that training has left
    behind, and must not take its place. Where all weights are trained, the engine holds one version.
    """
    model, spec = resolved.model, resolved.spec
    adapters = spec.max_async_level + 2 + (spec.eval is not None) + (spec.val is not None)
    lora = [
        "--enable-lora",
        "--max-loras", str(adapters),
        "--max-lora-rank", str(allowed_rank(model.lora.rank)),
    ]  # fmt: skip
    return [
        MODEL_DIR,
        "--served-model-name", model.id,
        "--port", str(INFERENCE_PORT),
        *(lora if spec.lora.enabled else []),
        "--max-model-len", str(model.seq_len),
        "--logprobs-mode", "processed_logprobs",
        *model.inference.extra_args,
    ]  # fmt: skip


def policy_kind(resolved: ResolvedRun) -> PolicyKind:
    """What this run's policies are made of."""
    return PolicyKind.adapter if resolved.spec.lora.enabled else PolicyKind.weights


def engine_env(resolved: ResolvedRun) -> dict[str, str]:
    """vLLM's variables: the routes that change what it serves are off unless asked for."""
    kind = policy_kind(resolved)
    # The second one opens /pause, /collective_rpc and more, which only the sidecar and the orchestrator can reach.
    routes = "VLLM_ALLOW_RUNTIME_LORA_UPDATING" if kind is PolicyKind.adapter else "VLLM_SERVER_DEV_MODE"
    return {
        routes: "True" if kind is PolicyKind.adapter else "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": "/tmp/vllm",
        "TRITON_CACHE_DIR": "/tmp/triton",
    }


def allowed_rank(rank: int) -> int:
    """The smallest rank of vLLM's table that holds adapters of `rank`."""
    return next(r for r in (8, 16, 32, 64, 128, 256, 320, 512) if r >= rank)


def inference(identity: RunIdentity, settings: Settings, resolved: ResolvedRun) -> list[Obj]:
    """Deployment and headless Service of the inference replicas."""
    shape = resolved.model.inference
    model = weights(identity, settings, resolved.model.source, shape.env)
    engine = container(
        "vllm",
        shape.image or settings.images.inference,
        settings.images.inference,
        args=engine_args(resolved),
        env=engine_env(resolved),
        extra_env=shape.env,
        ports={"openai": INFERENCE_PORT},
        mounts={"shm": "/dev/shm"},
        read_only_mounts={"adapters": ADAPTERS_DIR},
        resources=resources_of(shape.resources, shape.gpus),
        probes=http_probes("openai", startup_seconds=STARTUP_SECONDS, ready_path="/health", live_path="/health"),
    )
    engine["volumeMounts"].append(model.mount)
    sidecar = container(
        "sidecar",
        settings.images.orchestrator,
        settings.images.orchestrator,
        command=["python", "-m", "rlrun_orchestrator.sidecar"],
        env={
            "RLRUN_ADAPTERS_DIR": ADAPTERS_DIR,
            "RLRUN_ENGINE_URL": f"http://127.0.0.1:{INFERENCE_PORT}",
            "RLRUN_POLICY_KIND": policy_kind(resolved).value,
        },
        env_from=s3_env_from(identity),
        ports={"sidecar": SIDECAR_PORT},
        mounts={"adapters": ADAPTERS_DIR},
        resources=resources_of(settings.sidecar_resources),
        probes=http_probes("sidecar", startup_seconds=120),
    )
    template = pod_template(
        identity,
        settings,
        "inference",
        "inference",
        containers=[engine, sidecar],
        init_containers=model.init_containers,
        volumes={
            **model.volumes,
            "adapters": {"emptyDir": {}},
            "shm": {"emptyDir": {"medium": "Memory", "sizeLimit": settings.shm_size}},
        },
        priority_class=resolved.spec.priority_class_name,
        shape=shape,
    )
    ports = {"openai": INFERENCE_PORT, "sidecar": SIDECAR_PORT}
    return [
        deployment(identity, identity.inference, "inference", "inference", shape.replicas, template),
        service(identity, identity.inference, "inference", "inference", ports, headless=True),
    ]
