"""Estimate of the GPUs and the memory that a model needs, with the arithmetic. Pure.

With the architecture, everything that takes memory is summed. Without it, weights of 2 bytes per parameter may take a
share of the GPUs' memory only: a trainer needs the rest for activations, an engine for the KV cache.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from rlrun.api.base.kubernetes_types import Resources
from rlrun.api.base.pod_sizes import default_resources

from rlrun_cli.inputs.model_config import Architecture

BYTES_PER_PARAMETER = 2
TRAINED_BYTES = 16
"""Bytes for each trained parameter: weight, gradient and AdamW's two moments, in float32."""
TRAINER_SHARE, ENGINE_SHARE = 0.5, 0.7
"""Share of a GPU's memory that weights may take, without the architecture."""
USABLE_SHARE = 0.9
"""Share of a GPU's memory for what is summed here. CUDA, its graphs and fragmentation take the rest."""
FEWEST_SEQUENCES = 8
"""Sequences of full length for which an engine must have room."""
PARAMETERS = re.compile(r"(?<![0-9A-Za-z.])(\d+(?:\.\d+)?)\s*([bm])(?![a-z])", re.IGNORECASE)
MAX_GPUS = 16
GPU_COUNTS = (1, 2, 4, 8, 16)
GB, GIB = 1e9, 2**30
EPHEMERAL_STORAGE = "ephemeral-storage"
PROCESS_GIB = 8
"""Memory of the node for a process, without the model."""


@dataclass(frozen=True)
class Sizing:
    """GPUs per pod. Numbers above MAX_GPUS do not fit one pod."""

    weights_gb: float
    trainer_gpus: int
    engine_gpus: int
    tensor: int = 0
    """Part of `engine_gpus` that computes each layer together. 0: all."""
    steps: tuple[str, ...] = ()
    """Arithmetic, one line for each kind of memory."""

    @property
    def fits(self) -> bool:
        """True if one pod of each kind can have that many GPUs."""
        return max(self.trainer_gpus, self.engine_gpus) <= MAX_GPUS


@dataclass(frozen=True)
class Job:
    """Use of the model by runs, and the GPUs for it."""

    gpu_memory_gb: float
    seq_len: int
    rank: int
    micro_batch_tokens: int
    full_fine_tuning: bool = False


def parameters_in(name: str) -> float | None:
    """Return the number of parameters in a model's name, in billions: 0.6 for `Qwen3-0.6B`, None if it has none."""
    matches = PARAMETERS.findall(name)
    if not matches:
        return None
    number, unit = max(matches, key=lambda pair: float(pair[0]) * (1 if pair[1].lower() == "b" else 1e-3))
    return float(number) * (1 if unit.lower() == "b" else 1e-3)


def size(billions: float, gpu_memory_gb: float) -> Sizing:
    """Return the GPUs for a model with adapters whose architecture is not known."""
    weights = billions * BYTES_PER_PARAMETER
    found = Sizing(weights, _gpus(weights, gpu_memory_gb * TRAINER_SHARE), _gpus(weights, gpu_memory_gb * ENGINE_SHARE))
    return replace(
        found,
        steps=(
            f"Weights:   {billions:g} billion x 2 bytes = {weights:.3g} GB",
            f"Trainer:   {found.trainer_gpus} GPU, of whose memory weights take at most {TRAINER_SHARE:.0%}",
            f"Engine:    {found.engine_gpus} GPU, of whose memory weights take at most {ENGINE_SHARE:.0%}",
        ),
    )


def size_architecture(model: Architecture, job: Job) -> Sizing:
    """Return the GPUs for a model, as a power of two, and how the engine divides them."""
    weights = model.parameters * BYTES_PER_PARAMETER
    usable = USABLE_SHARE * job.gpu_memory_gb * GB
    trainer = _fewest(lambda gpus: trainer_bytes(model, job, gpus) <= usable)
    engine = _fewest(lambda gpus: sequences(model, job, gpus) >= FEWEST_SEQUENCES)
    tensor = _tensor_size(model, engine)
    steps = (
        f"Model:     {model.parameters / 1e9:.3g} billion parameters: {model.layers} layers of width {model.hidden}, "
        f"{model.heads} heads, {model.kv_heads} of keys and values",
        f"Weights:   {model.parameters / 1e9:.3g} billion x 2 bytes = {weights / GB:.3g} GB",
        f"KV cache:  2 x {model.attention_layers} layers x {_cached_heads(model, tensor)} heads x {model.head_dim} x 2 "
        f"bytes = {kv_bytes(model, tensor)} bytes a token, x {job.seq_len} tokens = "
        f"{kv_bytes(model, tensor) * job.seq_len / GB:.3g} GB a sequence",
        _optimizer_step(model, job),
        _trainer_step(model, job, trainer),
        f"Engine:    {engine} GPU: ({USABLE_SHARE} x {engine} x {job.gpu_memory_gb:g} - {weights / GB:.3g}) GB / "
        f"{kv_bytes(model, tensor) * job.seq_len / GB:.3g} GB = {sequences(model, job, engine)} sequences of "
        f"{job.seq_len} tokens at once",
    )
    return Sizing(weights / GB, trainer, engine, tensor, steps)


def trainer_bytes(model: Architecture, job: Job, gpus: int) -> int:
    """Return the memory that each GPU of a trainer needs."""
    return _divided_bytes(model, job) // gpus + _gathered_bytes(model, job, gpus) + _other_bytes(model, job)


def sequences(model: Architecture, job: Job, gpus: int) -> int:
    """Return how many sequences of full length an engine has room for."""
    free = USABLE_SHARE * job.gpu_memory_gb * GB * gpus - model.parameters * BYTES_PER_PARAMETER
    return max(0, int(free // (kv_bytes(model, _tensor_size(model, gpus)) * job.seq_len)))


def kv_bytes(model: Architecture, tensor: int) -> int:
    """Return the bytes of the KV cache for a token."""
    return 2 * model.attention_layers * _cached_heads(model, tensor) * model.head_dim * BYTES_PER_PARAMETER


def pod_resources(
    weights_gb: float, gpus: int, *, reads: int = 1, bytes_per_parameter: int = 2, downloads: bool = False
) -> Resources:
    """Return CPU and memory of a container: those of its GPUs, and more if `reads` processes read larger weights.

    `downloads`: the weights are copied to the node's disk, which the container then requests.
    """
    default = default_resources(gpus)
    read = math.ceil(weights_gb * GB / GIB * bytes_per_parameter / BYTES_PER_PARAMETER * reads)
    needed = read + PROCESS_GIB * max(1, gpus)
    named = int(default.limits["memory"].removesuffix("Gi"))
    disk = math.ceil(weights_gb * GB / GIB)
    storage = {EPHEMERAL_STORAGE: f"{disk}Gi"} if downloads and disk else {}
    limits = {**default.limits, "memory": f"{max(named, needed)}Gi"}
    return Resources(requests={**default.requests, **storage}, limits=limits)


def _optimizer_step(model: Architecture, job: Job) -> str:
    what = "weight, gradient and AdamW's two moments in float32"
    if job.full_fine_tuning:
        total = model.parameters * TRAINED_BYTES
        return f"Optimizer: {model.parameters / 1e9:.3g} billion x 16 bytes ({what}) = {total / GB:.3g} GB"
    adapter = model.adapter_parameters(job.rank)
    return (
        f"Optimizer: adapter of rank {job.rank}: {adapter / 1e6:.3g} million x 16 bytes ({what}) = "
        f"{adapter * TRAINED_BYTES / GB:.3g} GB"
    )


def _trainer_step(model: Architecture, job: Job, gpus: int) -> str:
    """Return the line of the trainer, with the memory of each of its GPUs."""
    parts = [f"{_divided_bytes(model, job) / GB:.3g} / {gpus}"]
    if gathered := _gathered_bytes(model, job, gpus):
        parts.append(f"gathered layers {gathered / GB:.3g}")
    if not job.full_fine_tuning:
        parts.append(f"adapter {model.adapter_parameters(job.rank) * TRAINED_BYTES / GB:.3g}")
    parts.append(
        f"activations 2 x {job.micro_batch_tokens} tokens x {model.layers} x {model.hidden} x 2 bytes = "
        f"{_activation_bytes(model, job) / GB:.3g}"
    )
    total = trainer_bytes(model, job, gpus) / GB
    return f"Trainer:   {gpus} GPU: {' + '.join(parts)}: {total:.3g} of {job.gpu_memory_gb:g} GB on each"


def _divided_bytes(model: Architecture, job: Job) -> int:
    """Return the bytes that the GPUs of a trainer divide among them."""
    return model.parameters * (TRAINED_BYTES if job.full_fine_tuning else BYTES_PER_PARAMETER)


def _gathered_bytes(model: Architecture, job: Job, gpus: int) -> int:
    """Return the bytes of divided weights that a GPU gathers: embeddings and head, and two layers."""
    if gpus == 1 and not job.full_fine_tuning:
        return 0
    root = model.vocabulary * model.hidden * (1 + model.has_head)
    return BYTES_PER_PARAMETER * (root + 2 * (model.parameters - root) // model.layers)


def _other_bytes(model: Architecture, job: Job) -> int:
    adapter = 0 if job.full_fine_tuning else model.adapter_parameters(job.rank) * TRAINED_BYTES
    return adapter + _activation_bytes(model, job)


def _activation_bytes(model: Architecture, job: Job) -> int:
    """Return the bytes of one micro-batch: the inputs of all layers, and as much for the layer that is computed."""
    return 2 * job.micro_batch_tokens * model.layers * model.hidden * BYTES_PER_PARAMETER


def _cached_heads(model: Architecture, tensor: int) -> int:
    """Return the heads in the caches of all GPUs: with more GPUs than heads, some GPUs have the same one."""
    return max(model.kv_heads, tensor)


def _tensor_size(model: Architecture, gpus: int) -> int:
    """Return the largest part of `gpus` that can compute each layer together. The others hold other layers."""
    return next((n for n in range(gpus, 0, -1) if gpus % n == 0 and model.is_divisible(n)), 1)


def _fewest(is_enough: Callable[[int], bool]) -> int:
    return next((gpus for gpus in GPU_COUNTS if is_enough(gpus)), 2 * MAX_GPUS)


def _gpus(weights_gb: float, usable_gb: float) -> int:
    return int(2 ** max(0, math.ceil(math.log2(weights_gb / usable_gb))))
