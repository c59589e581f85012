"""Commands of a client's program as bytes, and results that are read from bytes."""

import math
import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from rlrun.api.base.received import parse
from rlrun.protocol.client_command import (
    MAGIC,
    PREFIX,
    Command,
    CommandHeader,
    CommandResult,
    DatumHeader,
    ForwardBackward,
    OptimStep,
    SaveState,
    TensorHeader,
    TensorType,
    frame,
)
from rlrun.protocol.client_run import SaveKind


def body_of(command: Command, *buffers: bytes) -> bytes:
    """A command with its buffers."""
    return frame(CommandHeader(command=command), buffers)


def forward_backward(*datums: Sequence[int], forward_only: bool = False, loss: str = "cross_entropy") -> bytes:
    """A command with these tokens, each of which is also its own target, with weight 1."""
    headers, buffers = [], []
    for tokens in datums:
        shape = [len(tokens)]
        targets = TensorHeader(name="target_tokens", dtype=TensorType.int64, shape=shape, sizes=[8 * len(tokens)])
        weights = TensorHeader(name="weights", dtype=TensorType.float32, shape=shape, sizes=[4 * len(tokens)])
        headers.append(DatumHeader(length=len(tokens), tensors=[targets, weights]))
        buffers += [
            struct.pack(f"<{len(tokens)}i", *tokens),
            struct.pack(f"<{len(tokens)}q", *tokens),
            struct.pack(f"<{len(tokens)}f", *([1.0] * len(tokens))),
        ]
    return body_of(ForwardBackward(loss=loss, forward_only=forward_only, datums=headers), *buffers)


def optim_step(learning_rate: float = 1e-3) -> bytes:
    """An update with the SDK's defaults."""
    step = OptimStep(
        learning_rate=learning_rate, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.0, grad_clip_norm=0.0
    )
    return body_of(step)


def save(name: str | None, kind: SaveKind = SaveKind.weights, **settings: Any) -> bytes:
    """A save."""
    return body_of(SaveState(saved_as=kind, name=name, **settings))


def read_result(data: bytes) -> tuple[CommandResult, list[list[float]]]:
    """The result, and the log-probabilities of each datum."""
    magic, size, _ = PREFIX.unpack_from(data)
    assert magic == MAGIC
    end = PREFIX.size + size
    result = parse(CommandResult, data[PREFIX.size : end])
    ends = list(accumulate(result.lengths, initial=0))
    assert end + 4 * ends[-1] == len(data)
    values = struct.unpack(f"<{ends[-1]}f", data[end:])
    assert all(map(math.isfinite, values))
    return result, [list(values[begin:stop]) for begin, stop in pairwise(ends)]
