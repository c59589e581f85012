"""Commands of clients' programs to the trainer, as rlrun-tinker sends them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rlrun.protocol.client_command import DatumHeader, ForwardBackward, OptimStep, TensorHeader, TensorType

STEP: dict[str, float] = {
    "learning_rate": 1e-2,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-12,
    "weight_decay": 0.0,
    "grad_clip_norm": 0.0,
}


@dataclass(frozen=True)
class Sparse:
    """Matrix that is sent as compressed sparse rows."""

    values: np.ndarray
    dtype: type = np.float32


@dataclass(frozen=True)
class Datum:
    """Datum with its buffers."""

    header: DatumHeader
    data: bytes

    @classmethod
    def of(cls, tokens: Sequence[int], **tensors: Any) -> "Datum":
        """Return a datum. The type of a numpy array is kept, and lists have the SDK's types."""
        headers, parts = [], [np.asarray(tokens, "<i4").tobytes()]
        for name, value in tensors.items():
            header, data = _tensor(name, value)
            headers.append(header)
            parts += data
        return cls(DatumHeader(length=len(tokens), tensors=headers), b"".join(parts))


def _tensor(name: str, value: Any) -> tuple[TensorHeader, list[bytes]]:
    if isinstance(value, Sparse):
        stored: np.ndarray = np.asarray(value.values, value.dtype)
        rows, columns = stored.nonzero()
        offsets = np.concatenate([[0], np.cumsum((stored != 0).sum(1))])
        arrays = [stored[rows, columns], offsets.astype("<i8"), columns.astype("<i8")]
    else:
        default = np.int64 if name == "target_tokens" else np.float32
        stored = np.asarray(value, None if isinstance(value, np.ndarray) else default)
        arrays = [stored]
    parts = [array.tobytes() for array in arrays]
    header = TensorHeader(
        name=name, dtype=TensorType(stored.dtype.name), shape=list(stored.shape), sizes=[len(part) for part in parts]
    )
    return header, parts


def command(
    loss: str, datums: Sequence[Datum], config: Mapping[str, float] | None = None, forward_only: bool = False
) -> tuple[ForwardBackward, memoryview]:
    """Return a command and its buffers."""
    header = ForwardBackward(
        loss=loss,
        loss_config=dict(config or {}),
        forward_only=forward_only,
        datums=[datum.header for datum in datums],
    )
    return header, memoryview(b"".join(datum.data for datum in datums))


def optim_step(**changes: float) -> OptimStep:
    """Return an update with the SDK's defaults, but a larger learning rate."""
    return OptimStep.model_validate(STEP | changes)


def random_datums(
    loss: str, count: int, vocabulary: int, seed: int = 0, targets: int | None = None, longest: int = 17
) -> list[Datum]:
    """Return random datums with the inputs of the loss. Not each token has a weight or an advantage. `targets` is the
    number of targets of each token, or None for vectors.
    """
    draw = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        length = int(draw.integers(3, longest))
        shape = (length,) if targets is None else (length, targets)
        weighted = draw.random(shape) < 0.7
        inputs: dict[str, Any] = {"target_tokens": draw.integers(0, vocabulary, shape)}
        if loss == "cross_entropy":
            inputs["weights"] = (draw.normal(size=shape) * weighted).astype(np.float32)
        else:
            inputs["logprobs"] = (-3.7 + draw.uniform(-0.4, 0.4, length)).astype(np.float32)
            inputs["advantages"] = (draw.normal(size=length) * weighted).astype(np.float32)
        if loss == "gspo":
            weighted[-1] = True
            inputs["sequence_ratio_mask"] = weighted.astype(np.float32)
        made.append(Datum.of(draw.integers(0, vocabulary, length).tolist(), **inputs))
    return made
