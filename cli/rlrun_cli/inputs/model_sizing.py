"""Estimate of the GPUs that a model needs. Pure.

Weights have 2 bytes per parameter in trainer and engine. A trainer of adapters needs the rest of the memory for
activations, an engine for the KV cache, so that weights may take a share of the memory only.
"""

import math
import re
from dataclasses import dataclass

BYTES_PER_PARAMETER = 2
TRAINER_SHARE, ENGINE_SHARE = 0.5, 0.7
"""Share of a GPU's memory that weights may take."""
PARAMETERS = re.compile(r"(?<![0-9A-Za-z.])(\d+(?:\.\d+)?)\s*([bm])(?![a-z])", re.IGNORECASE)
MAX_GPUS = 16


@dataclass(frozen=True)
class Sizing:
    """GPUs per pod."""

    weights_gb: float
    trainer_gpus: int
    engine_gpus: int

    @property
    def fits(self) -> bool:
        """True if one pod of each kind can have that many GPUs."""
        return max(self.trainer_gpus, self.engine_gpus) <= MAX_GPUS


def parameters_in(name: str) -> float | None:
    """Return the number of parameters in a model's name, in billions: 0.6 for `Qwen3-0.6B`, None if it has none."""
    matches = PARAMETERS.findall(name)
    if not matches:
        return None
    number, unit = max(matches, key=lambda pair: float(pair[0]) * (1 if pair[1].lower() == "b" else 1e-3))
    return float(number) * (1 if unit.lower() == "b" else 1e-3)


def size(billions: float, gpu_memory_gb: float) -> Sizing:
    """Return the GPUs for a model with adapters, as powers of two, which tensor parallelism needs."""
    weights = billions * BYTES_PER_PARAMETER
    return Sizing(weights, _gpus(weights, gpu_memory_gb * TRAINER_SHARE), _gpus(weights, gpu_memory_gb * ENGINE_SHARE))


def _gpus(weights_gb: float, usable_gb: float) -> int:
    return int(2 ** max(0, math.ceil(math.log2(weights_gb / usable_gb))))
