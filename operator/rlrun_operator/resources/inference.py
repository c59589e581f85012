"""The inference replicas: the stock vLLM image, and beside it the sidecar that brings the policies."""

from collections.abc import Sequence
from typing import Any

from rlrun.api.model import RLModelSpec
from rlrun.constants import INFERENCE_PORT, SIDECAR_PORT, Role
from rlrun.protocol.policy import PolicyKind
from rlrun.protocol.resolved import ResolvedRun

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.model_volumes import weights
from rlrun_operator.resources.naming import RunIdentity
from rlrun_operator.resources.pod_templates import (
    MODEL_DIR,
    container,
    deployment,
    http_probes,
    pod_template,
    resources_of,
    s3_env_from,
    service,
)

Obj = dict[str, Any]

STARTUP_SECONDS = 2700
"""Loading, compiling and capturing graphs of a big model."""
SIDECAR_STARTUP_SECONDS = 600
"""A sidecar requests little CPU: beside engines that load models it needs minutes, and a restart would begin anew."""
ADAPTERS_DIR = "/adapters"


def engine_args(resolved: ResolvedRun) -> list[str]:
    """vLLM's command line.

    A rollout may be drawn from any of the last maxAsyncLevel policies while the newest is in use and the next is being
    loaded: hence two adapters more than maxAsyncLevel. Evaluation and validation go on with one that training has left
    behind, and must not take its place. Where all weights are trained, the engine holds one version.
    """
    model, spec = resolved.model, resolved.spec
    adapters = spec.max_async_level + 2 + (spec.eval is not None) + (spec.val is not None)
    return serve_args(model, lora_args(model, adapters) if spec.lora.enabled else [])


def lora_args(model: RLModelSpec, adapters: int) -> list[str]:
    """What makes vLLM serve up to so many adapters in one batch."""
    return [
        "--enable-lora",
        "--max-loras", str(adapters),
        "--max-lora-rank", str(allowed_rank(model.lora.rank)),
    ]  # fmt: skip


def serve_args(model: RLModelSpec, lora: Sequence[str]) -> list[str]:
    """vLLM's command line around the arguments for adapters; the RLModel's own come last, and win."""
    return [
        MODEL_DIR,
        "--served-model-name", model.id,
        "--port", str(INFERENCE_PORT),
        *lora,
        "--max-model-len", str(model.seq_len),
        "--logprobs-mode", "processed_logprobs",
        *model.inference.extra_args,
    ]  # fmt: skip


def policy_kind(resolved: ResolvedRun) -> PolicyKind:
    """What this run's policies are made of."""
    return PolicyKind.adapter if resolved.spec.lora.enabled else PolicyKind.weights


def engine_env(kind: PolicyKind) -> dict[str, str]:
    """vLLM's variables: the routes that change what it serves are off unless asked for."""
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


def engine(
    settings: OperatorSettings, model: RLModelSpec, args: Sequence[str], kind: PolicyKind, weights_mount: Obj
) -> Obj:
    """vLLM's container; policies come to it through the volume `adapters`."""
    shape = model.inference
    made = container(
        "vllm",
        shape.image or settings.images.inference,
        settings.images.inference,
        args=args,
        env=engine_env(kind),
        extra_env=shape.env,
        ports={"openai": INFERENCE_PORT},
        mounts={"shm": "/dev/shm"},
        read_only_mounts={"adapters": ADAPTERS_DIR},
        resources=resources_of(shape.resources, shape.gpus),
        probes=engine_probes("openai"),
    )
    made["volumeMounts"].append(weights_mount)
    return made


def engine_probes(port: str) -> Obj:
    """Probes of vLLM's container.

    When the engine's process dies, vLLM's server closes its port and then waits for the calls that are open, one that
    loads an adapter for ever, also after SIGTERM. A port that refuses is a surer sign than silence, for no server is
    too busy to have its connections accepted: so this one has seconds, not the minutes of `http_probes`.
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


def engine_volumes(settings: OperatorSettings) -> dict[str, Obj]:
    """The volumes of vLLM's container, besides the model's."""
    return {
        "adapters": {"emptyDir": {}},
        "shm": {"emptyDir": {"medium": "Memory", "sizeLimit": settings.shm_size}},
    }


def inference(identity: RunIdentity, settings: OperatorSettings, resolved: ResolvedRun) -> list[Obj]:
    """Deployment and headless Service of the inference replicas."""
    shape = resolved.model.inference
    model = weights(identity, settings, resolved.model.source, shape.env)
    kind = policy_kind(resolved)
    vllm = engine(settings, resolved.model, engine_args(resolved), kind, model.mount)
    sidecar = container(
        "sidecar",
        settings.images.orchestrator,
        settings.images.orchestrator,
        command=["python", "-m", "rlrun_adapter_sidecar.policies"],
        env={
            "RLRUN_ADAPTERS_DIR": ADAPTERS_DIR,
            "RLRUN_ENGINE_URL": f"http://127.0.0.1:{INFERENCE_PORT}",
            "RLRUN_POLICY_KIND": kind.value,
        },
        env_from=s3_env_from(identity),
        ports={"sidecar": SIDECAR_PORT},
        mounts={"adapters": ADAPTERS_DIR},
        resources=resources_of(settings.sidecar_resources),
        probes=http_probes("sidecar", startup_seconds=SIDECAR_STARTUP_SECONDS),
    )
    template = pod_template(
        identity,
        settings,
        Role.inference,
        "inference",
        containers=[vllm, sidecar],
        init_containers=model.init_containers,
        volumes={**model.volumes, **engine_volumes(settings)},
        priority_class=resolved.spec.priority_class_name,
        shape=shape,
    )
    ports = {"openai": INFERENCE_PORT, "sidecar": SIDECAR_PORT}
    return [
        deployment(identity, identity.inference, Role.inference, "inference", shape.replicas, template),
        # The orchestrator asks each replica's sidecar itself before it sends anything, and DNS, with what it keeps for
        # half a minute, would only tell it late that one has become ready.
        service(identity, identity.inference, Role.inference, "inference", ports, headless=True, unready=True),
    ]
