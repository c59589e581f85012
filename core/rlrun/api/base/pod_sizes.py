"""Default CPU and memory of trainer and engine containers.

A ResourceQuota rejects pods that have no requests, and a LimitRange gives pods that have no limits its default limits,
which are too small for a model. The requests are small, so that a pod fits on small GPU nodes. The limits are large,
because trainers read models into memory while they start.
"""

from rlrun.api.base.kubernetes_types import Resources

CPU, MEMORY = "cpu", "memory"
CPUS, MEMORY_GIB = (2, 16), (8, 128)
"""(request, limit) per GPU, in CPUs and in GiB of memory."""
CPUS_WITHOUT_GPU, MEMORY_GIB_WITHOUT_GPU = (1, 16), (2, 32)
"""(request, limit) of a pod without GPUs, in CPUs and in GiB of memory."""


def default_resources(gpus: int) -> Resources:
    """Return the default CPU and memory of a container with `gpus` GPUs."""
    cpus = _scale(CPUS, gpus) if gpus else CPUS_WITHOUT_GPU
    memory = _scale(MEMORY_GIB, gpus) if gpus else MEMORY_GIB_WITHOUT_GPU
    return Resources(
        requests={CPU: str(cpus[0]), MEMORY: f"{memory[0]}Gi"}, limits={CPU: str(cpus[1]), MEMORY: f"{memory[1]}Gi"}
    )


def with_default_resources(named: Resources, gpus: int) -> Resources:
    """Return `named` with a default added for CPU or memory if `named` has neither a request nor a limit for it.

    If a resource has only a request or only a limit, the other gets no default, because Kubernetes rejects a request
    above the limit.
    """
    default = default_resources(gpus)
    open_ = [name for name in (CPU, MEMORY) if name not in named.requests and name not in named.limits]
    return Resources(
        requests={**{name: default.requests[name] for name in open_}, **named.requests},
        limits={**{name: default.limits[name] for name in open_}, **named.limits},
    )


def _scale(values: tuple[int, int], gpus: int) -> tuple[int, int]:
    return values[0] * gpus, values[1] * gpus
