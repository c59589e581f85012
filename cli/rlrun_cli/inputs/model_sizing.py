"""Pure functions that estimate the GPUs and memory that a model needs, and show the calculation.

If the architecture is known, the estimate adds up all memory uses. Otherwise it lets the weights, at 2 bytes per
parameter, take a fixed fraction of the GPUs' memory. The rest is for a trainer's activations or an engine's KV cache.
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
"""Bytes per trained parameter: weight, gradient and AdamW's two moments, in float32."""
LOGIT_TOKENS, LOGIT_BYTES = 2048, 10
"""Number of tokens whose logits a trainer computes at a time, and bytes per logit: two float32 values and one bfloat16
value.
"""
TRAINER_SHARE, ENGINE_SHARE = 0.5, 0.7
"""Fractions of a GPU's memory that weights may take if the architecture is unknown."""
USABLE_SHARE = 0.9
"""Fraction of a GPU's memory for the uses added up here. CUDA, its graphs and fragmentation take the rest."""
FEWEST_SEQUENCES = 8
"""Minimum number of full-length sequences that must fit in an engine's KV cache."""
PARAMETERS = re.compile(r"(?<![0-9A-Za-z.])(\d+(?:\.\d+)?)\s*([bm])(?![a-z])", re.IGNORECASE)
MAX_GPUS = 16
GPU_COUNTS = (1, 2, 4, 8, 16)
GB, GIB = 1e9, 2**30
EPHEMERAL_STORAGE = "ephemeral-storage"
PART_READS = 1.2
"""Node memory needed while each trainer process reads only its part, as a multiple of the weights' size."""
PROCESS_GIB = 8
"""Node memory in GiB for a process, excluding the model."""


@dataclass(frozen=True)
class Sizing:
    """GPUs per trainer pod and per engine pod. A number above MAX_GPUS means that the model does not fit in one pod."""

    weights_gb: float
    trainer_gpus: int
    engine_gpus: int
    tensor: int = 0
    """Number of engine GPUs among which each layer is divided. 0 means all `engine_gpus`."""
    steps: tuple[str, ...] = ()
    """Calculation, one line per kind of memory."""
    read_by_parts: bool = False
    """True if each process of a trainer reads only its part of the weights. False if this is unknown."""

    @property
    def fits(self) -> bool:
        """True if trainer and engine each need at most MAX_GPUS GPUs."""
        return max(self.trainer_gpus, self.engine_gpus) <= MAX_GPUS


@dataclass(frozen=True)
class Job:
    """Intended use of the model and the available GPUs."""

    gpu_memory_gb: float
    seq_len: int
    rank: int
    micro_batch_tokens: int
    full_fine_tuning: bool = False

    @property
    def pass_tokens(self) -> int:
        """Largest number of tokens in a forward pass of the trainer. A sequence that is longer than a micro-batch has
        its own pass.
        """
        return max(self.micro_batch_tokens, self.seq_len)


def parameters_in(name: str) -> float | None:
    """Return the number of parameters in billions in a model's name, such as 0.6 for `Qwen3-0.6B`, or None."""
    matches = PARAMETERS.findall(name)
    if not matches:
        return None
    number, unit = max(matches, key=lambda pair: float(pair[0]) * (1 if pair[1].lower() == "b" else 1e-3))
    return float(number) * (1 if unit.lower() == "b" else 1e-3)


def size(billions: float, gpu_memory_gb: float) -> Sizing:
    """Return the GPUs for training and serving adapters of a model whose architecture is unknown."""
    weights = billions * BYTES_PER_PARAMETER
    found = Sizing(weights, _gpus(weights, gpu_memory_gb * TRAINER_SHARE), _gpus(weights, gpu_memory_gb * ENGINE_SHARE))
    return replace(
        found,
        steps=(
            f"Weights:   {billions:g} billion x 2 bytes = {weights:.3g} GB",
            f"Trainer:   {found.trainer_gpus} GPU; weights take at most {TRAINER_SHARE:.0%}",
            f"Engine:    {found.engine_gpus} GPU; weights take at most {ENGINE_SHARE:.0%}",
        ),
    )


def size_architecture(model: Architecture, job: Job) -> Sizing:
    """Return the GPUs for a model's trainer and engine, as powers of two, and how the engine divides the model."""
    weights = model.parameters * BYTES_PER_PARAMETER
    usable = USABLE_SHARE * job.gpu_memory_gb * GB
    trainer = _fewest(lambda gpus: trainer_bytes(model, job, gpus) <= usable)
    engine = _fewest(lambda gpus: sequences(model, job, gpus) >= FEWEST_SEQUENCES)
    tensor = _tensor_size(model, engine)
    steps = (
        f"Model:     {model.parameters / 1e9:.3g} billion parameters: {model.layers} layers of width {model.hidden}, "
        f"{model.heads} heads, {model.kv_heads} key-value heads",
        f"Weights:   {model.parameters / 1e9:.3g} billion x 2 bytes = {weights / GB:.3g} GB",
        f"KV cache:  2 x {model.attention_layers} layers x {_cached_heads(model, tensor)} heads x {model.head_dim} x 2 "
        f"bytes = {kv_bytes(model, tensor)} bytes per token, x {job.seq_len} tokens = "
        f"{kv_bytes(model, tensor) * job.seq_len / GB:.3g} GB per sequence",
        _optimizer_step(model, job),
        *_expert_steps(model, job),
        _trainer_step(model, job, trainer),
        f"Engine:    {engine} GPU: ({USABLE_SHARE} x {engine} x {job.gpu_memory_gb:g} - {weights / GB:.3g}) GB / "
        f"{kv_bytes(model, tensor) * job.seq_len / GB:.3g} GB = {sequences(model, job, engine)} sequences of "
        f"{job.seq_len} tokens at once",
    )
    return Sizing(weights / GB, trainer, engine, tensor, steps, model.read_by_parts)


def trainer_bytes(model: Architecture, job: Job, gpus: int) -> int:
    """Return the bytes that each GPU of a trainer needs."""
    return _divided_bytes(model, job) // gpus + _gathered_bytes(model, job, gpus) + _other_bytes(model, job)


def sequences(model: Architecture, job: Job, gpus: int) -> int:
    """Return how many full-length sequences fit in the KV cache of an engine with `gpus` GPUs."""
    free = USABLE_SHARE * job.gpu_memory_gb * GB * gpus - model.parameters * BYTES_PER_PARAMETER
    return max(0, int(free // (kv_bytes(model, _tensor_size(model, gpus)) * job.seq_len)))


def kv_bytes(model: Architecture, tensor: int) -> int:
    """Return the KV cache size of one token in bytes."""
    return 2 * model.attention_layers * _cached_heads(model, tensor) * model.head_dim * BYTES_PER_PARAMETER


def pod_resources(
    weights_gb: float, gpus: int, *, reads: float = 1, bytes_per_parameter: int = 2, downloads: bool = False
) -> Resources:
    """Return the CPU and memory for a container with GPUs. The memory is enough for `reads` copies of the weights.

    `downloads` is True if the weights are copied to the node's disk. The container then requests disk space for them.
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


def _expert_steps(model: Architecture, job: Job) -> list[str]:
    if job.full_fine_tuning or not model.experts:
        return []
    trained, stored = model.expert_adapter_parameters(job.rank)
    return [
        f"Experts:   not in the adapter. `experts` in lora.targetModules would add {trained / 1e6:.3g} million weights "
        f"to the adapter: {trained * TRAINED_BYTES / GB:.3g} GB on each GPU of the trainer, and "
        f"{stored * BYTES_PER_PARAMETER / GB:.3g} GB of files in each step"
    ]


def _trainer_step(model: Architecture, job: Job, gpus: int) -> str:
    """Return the trainer's line of the calculation, with the memory per GPU."""
    parts = [f"{_divided_bytes(model, job) / GB:.3g} / {gpus}"]
    if gathered := _gathered_bytes(model, job, gpus):
        parts.append(f"gathered layers {gathered / GB:.3g}")
    if not job.full_fine_tuning:
        parts.append(f"adapter {model.adapter_parameters(job.rank) * TRAINED_BYTES / GB:.3g}")
    inputs, logits = _input_bytes(model, job), _logit_bytes(model)
    passed = f"{job.pass_tokens} tokens x {model.layers} x {model.hidden} x 2 bytes"
    if inputs >= logits:
        parts.append(f"activations 2 x {passed} = {2 * inputs / GB:.3g}")
    else:
        parts.append(f"activations {passed} = {inputs / GB:.3g}")
        parts.append(f"logits {LOGIT_TOKENS} tokens x {model.vocabulary} x {LOGIT_BYTES} bytes = {logits / GB:.3g}")
    total = trainer_bytes(model, job, gpus) / GB
    return f"Trainer:   {gpus} GPU: {' + '.join(parts)}: {total:.3g} of {job.gpu_memory_gb:g} GB per GPU"


def _divided_bytes(model: Architecture, job: Job) -> int:
    """Return the bytes that a trainer divides among its GPUs."""
    return model.parameters * (TRAINED_BYTES if job.full_fine_tuning else BYTES_PER_PARAMETER)


def _gathered_bytes(model: Architecture, job: Job, gpus: int) -> int:
    """Return the bytes of sharded weights that a GPU gathers: embeddings, head and two layers."""
    if gpus == 1 and not job.full_fine_tuning:
        return 0
    root = model.vocabulary * model.hidden * (1 + model.has_head)
    return BYTES_PER_PARAMETER * (root + 2 * (model.parameters - root) // model.layers)


def _other_bytes(model: Architecture, job: Job) -> int:
    """Return the bytes that each GPU needs for the adapter, for the inputs of all layers, and for the current layer or
    the logits, whichever is larger.

    The memory of the current layer is estimated from the size of the inputs. The layer and the logits do not need
    memory at the same time, because the logits are computed after the last layer.
    """
    adapter = 0 if job.full_fine_tuning else model.adapter_parameters(job.rank) * TRAINED_BYTES
    inputs = _input_bytes(model, job)
    return adapter + inputs + max(inputs, _logit_bytes(model))


def _input_bytes(model: Architecture, job: Job) -> int:
    """Return the bytes of the inputs of all layers in one pass."""
    return job.pass_tokens * model.layers * model.hidden * BYTES_PER_PARAMETER


def _logit_bytes(model: Architecture) -> int:
    return LOGIT_TOKENS * model.vocabulary * LOGIT_BYTES


def _cached_heads(model: Architecture, tensor: int) -> int:
    """Return the total number of cached heads. With more GPUs than heads, several GPUs cache the same head."""
    return max(model.kv_heads, tensor)


def _tensor_size(model: Architecture, gpus: int) -> int:
    """Return the largest divisor of `gpus` among which each layer can be divided. Pipeline stages use the rest."""
    return next((n for n in range(gpus, 0, -1) if gpus % n == 0 and model.is_divisible(n)), 1)


def _fewest(is_enough: Callable[[int], bool]) -> int:
    return next((gpus for gpus in GPU_COUNTS if is_enough(gpus)), 2 * MAX_GPUS)


def _gpus(weights_gb: float, usable_gb: float) -> int:
    return int(2 ** max(0, math.ceil(math.log2(weights_gb / usable_gb))))
