"""Commands that a client's program sends to the trainer of its pool, and their results.

    POST /sessions/{uid}/commands/{seq}             command  -> 202
    GET  /sessions/{uid}/results/{seq}?wait=SECONDS          -> 200 result, or 202 CommandPending
    POST /sessions/{uid}/heartbeat                           -> 204

Requests carry the run's token (`client_run.client_token`). The trainer executes the commands of a run in the order of
their numbers, which start at 1. Creating the model counts as number 0. A command that arrives early waits for the
commands before it. A body that is not a valid command fails but still uses up its number, so that later commands do not
wait for that number. Sending a command again with the same number changes nothing (202). A different command with that
number is refused (409, `CommandConflict`). A command is refused with 429 (`TooManyCommands`) while too many commands
wait. GET responds with 404 (`CommandUnknown`) if this process never received the number: the trainer has restarted and
the command is lost. GET responds with 410 (`ResultGone`) if the trainer no longer keeps the result.

Command and result have the same format, little-endian:

    prefix    8 bytes, MAGIC; uint32 size of the header; uint32 0
    header    JSON: a command, or a `CommandResult`
    buffers   one after the other in the order of the header

The buffers of a command are, for each datum, its tokens (int32) and its tensors as the client sent them. The buffers of
a result are one float32 array per datum with its log-probabilities, in the order of the datums.
"""

import struct
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, FailFast, Field

from rlrun.api.base.names import Text
from rlrun.api.base.received import InputLimits
from rlrun.api.base.schema import Schema
from rlrun.protocol.client_run import MAX_TTL, SAVE_NAME, SaveKind
from rlrun.protocol.policy import PolicyRef

CONTENT_TYPE = "application/vnd.rlrun.command"
MAGIC = b"RLCMD1\n\0"
PREFIX = struct.Struct("<8sII")
MAX_DATUMS = 4096
"""Maximum number of datums in a command. The client splits larger batches into several commands."""
MAX_TENSORS = 8
"""Maximum number of tensors of a datum."""
MAX_COMMAND_BYTES = 64 * 1024**2
MAX_TARGETS = 2**23
"""Maximum number of targets in a command, including targets that sparse tensors omit. The result has one
log-probability per target.
"""
MAX_RESULT_BYTES = 4 * MAX_TARGETS + 1024**2
"""Maximum size of a result in bytes, including its header."""
MAX_WAITING_COMMANDS = 64
"""Maximum number of a run's commands that the trainer has received but not completed. Neither this limit nor the two
below apply to the next command that the run will execute, because all others wait for it.
"""
MAX_WAITING_BYTES = 256 * 1024**2
MAX_POOL_BYTES = 2 * 1024**3
"""Maximum total size in bytes of the waiting commands of all runs in a pool."""
GAP_SECONDS = 300.0
"""Seconds that commands wait for a missing earlier command. After that they fail."""
RESUMED_GAP_SECONDS = 60.0
"""Like GAP_SECONDS, but for the first command of a session that continues from a saved state. If an earlier trainer has
executed the missing command, the program already has the result and never sends the command again.
"""
MAX_WAIT_SECONDS = 30.0
"""Maximum value of the query parameter `wait`, in seconds."""


class TensorType(StrEnum):
    """Data type of a tensor's elements."""

    float32 = "float32"
    int64 = "int64"
    int32 = "int32"
    bfloat16 = "bfloat16"

    @property
    def size(self) -> int:
        """Size of an element in bytes."""
        return {"float32": 4, "int64": 8, "int32": 4, "bfloat16": 2}[self.value]


class TensorHeader(Schema):
    """Tensor of a datum, as the client sent it: dense, or a matrix of compressed sparse rows (CSR)."""

    name: str = Field(min_length=1, max_length=64)
    dtype: TensorType
    shape: list[Annotated[int, Field(ge=0, le=2**24)]] = Field(min_length=1, max_length=2)
    """Shape of the tensor: [T] or [T, K], where T is a number of tokens."""
    sizes: list[Annotated[int, Field(ge=0, le=MAX_COMMAND_BYTES)]] = Field(min_length=1, max_length=3)
    """Sizes of the buffers in bytes. A dense tensor has one buffer. A CSR tensor has three: values, row offsets (int64)
    and column indices (int64).
    """


class DatumHeader(Schema):
    """Datum: a sequence of tokens with the inputs of its loss. A tensor has a row for each token: row i is about the
    prediction made after token i, so the target of the last row is not one of `tokens`.
    """

    length: int = Field(ge=1, le=2**24)
    """Number of tokens."""
    tensors: Annotated[list[TensorHeader], FailFast()] = Field(default_factory=list, max_length=MAX_TENSORS)

    @property
    def size(self) -> int:
        """Size of the datum's buffers in bytes."""
        return 4 * self.length + sum(sum(tensor.sizes) for tensor in self.tensors)


class ForwardBackward(Schema):
    """Command that adds the gradient of a loss to the run's gradient, and returns log-probabilities and metrics."""

    kind: Literal["forward_backward"] = "forward_backward"
    loss: str = Field(min_length=1, max_length=64)
    loss_config: dict[str, float] = Field(default_factory=dict, max_length=16)
    forward_only: bool = False
    """If true, computes log-probabilities and metrics without adding a gradient."""
    datums: Annotated[list[DatumHeader], FailFast()] = Field(min_length=1, max_length=MAX_DATUMS)


class OptimStep(Schema):
    """Command that performs one AdamW update with the run's gradient, and clears the gradient."""

    kind: Literal["optim_step"] = "optim_step"
    learning_rate: float = Field(ge=0, le=10)
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    eps: float = Field(ge=0, le=1)
    weight_decay: float = Field(ge=0, le=1)
    grad_clip_norm: float = Field(ge=0)
    """Maximum norm of the gradient. 0 disables clipping."""


class SaveState(Schema):
    """Command that saves a checkpoint or an adapter. The command is complete when all files are in S3.

    An adapter without a name is a policy version, from which the program samples. Only the newest policy versions are
    kept.
    """

    kind: Literal["save"] = "save"
    saved_as: SaveKind
    name: str | None = Field(default=None, pattern=f"^{SAVE_NAME}$", max_length=128)
    """Name of the saved state. May be omitted only for `sampler_weights`."""
    ttl_seconds: int | None = Field(default=None, ge=1, le=MAX_TTL)
    overwrite: bool = False
    """If false, the command fails if the run has already used the name."""
    user_metadata: dict[str, Any] = Field(default_factory=dict, max_length=256)


Command = ForwardBackward | OptimStep | SaveState


class CommandHeader(Schema):
    """Header of a command."""

    wire_limits = InputLimits(size=8 * 1024**2, values=2**19)

    command: Annotated[Command, Field(discriminator="kind")]


class ErrorCategory(StrEnum):
    """Who can fix an error: the user or the server. The values are those of the Tinker SDK."""

    user = "user"
    server = "server"


class CommandError(Schema):
    """Reason why a command failed. A failed command does not change the run's weights. `optim_step` clears a gradient
    that is not finite.
    """

    message: str = Field(max_length=16_384)
    category: ErrorCategory


class CommandResult(Schema):
    """Result of a command."""

    # A diverged run has metrics that are NaN, which would become null.
    model_config = ConfigDict(ser_json_inf_nan="constants")
    wire_limits = InputLimits(size=16 * 1024**2, values=2**20)

    error: CommandError | None = None
    metrics: dict[str, float] = Field(default_factory=dict, max_length=256)
    lengths: list[int] = Field(default_factory=list, max_length=MAX_DATUMS)
    """Number of log-probabilities in each datum's buffer."""
    widths: list[Annotated[int, Field(ge=0, le=2**24)]] = Field(default_factory=list, max_length=MAX_DATUMS)
    """Number of targets per token of each datum: K for targets of shape [T, K], and 0 for shape [T]. Empty if all are
    0.
    """
    policy: PolicyRef | None = None
    """Adapter from which engines can sample. Set only in the result of a `SaveState` of `sampler_weights`."""


class CommandState(StrEnum):
    """State of a command or a sampling request that has no result yet. The values are those of the Tinker SDK."""

    active = "active"
    paused_capacity = "paused_capacity"
    """The run's trainer session is not open, or no engine can sample for the run yet."""
    paused_rate_limit = "paused_rate_limit"
    """The trainer is working for other runs, or the engines are busy."""


class CommandPending(Schema):
    """Response for a command or a sampling request that has no result yet."""

    state: CommandState
    reason: Text | None = None
    """Explanation of the state for users."""


def frame(header: Schema, buffers: Sequence[bytes | memoryview] = ()) -> bytes:
    """Return a command or result, with its buffers, as bytes in the format of this module."""
    text = header.model_dump_json(by_alias=True, exclude_none=True).encode()
    return b"".join([PREFIX.pack(MAGIC, len(text), 0), text, *buffers])
