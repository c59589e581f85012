"""Command of a client's program as the trainer received it (`rlrun.protocol.client_command`)."""

import hashlib
import math
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from rlrun.api.base.received import InputInvalid, check_value, limits_of, read_fast, to_input_invalid
from rlrun.protocol.client_command import (
    MAGIC,
    PREFIX,
    Command,
    CommandError,
    CommandHeader,
    DatumHeader,
    ErrorCategory,
    ForwardBackward,
    SaveState,
    TensorHeader,
)
from rlrun.protocol.client_run import MAX_METADATA_BYTES

OFFSET_BYTES = 8
"""Size in bytes of a row offset and of a column index in a sparse tensor."""
HEADER_MEMORY = 24
"""Estimated bytes of memory per byte of a header, because JSON that describes many small tensors becomes many
objects.
"""
HEADER = "The command's header"
MAX_NAMES = 32
METADATA = frozenset({"userMetadata", "user_metadata"})
"""Names of the field with the user's own JSON object, which `_check_names` skips because pydantic accepts it as one
value.
"""
MAX_SMALL_HEADER = 8 * MAX_METADATA_BYTES
"""Maximum size in bytes of the header of a command without datums."""


@dataclass(frozen=True)
class ReceivedCommand:
    """Command with the buffers that follow its header, or a CommandError if the body is not a valid command."""

    digest: bytes
    """SHA-256 of the body."""
    size: int
    """Estimated memory of the command in bytes."""
    command: Command | CommandError
    buffers: memoryview

    @classmethod
    def read(cls, body: bytes) -> "ReceivedCommand":
        """Parse a body. If it is not a valid command, the result contains the error as its command, because the
        command's number is used up.
        """
        digest = hashlib.sha256(body).digest()
        try:
            command, buffers = _read(memoryview(body))
        except ValueError as error:
            refusal = CommandError(message=str(error)[:16_384], category=ErrorCategory.user)
            return cls(digest, len(refusal.message), refusal, memoryview(b""))
        return cls(digest, len(body) + HEADER_MEMORY * (len(body) - len(buffers)), command, buffers)


def _read(body: memoryview) -> tuple[Command, memoryview]:
    """Return the command and its buffers. Raises ValueError."""
    if len(body) < PREFIX.size:
        raise ValueError(f"The command is {len(body)} bytes long, shorter than its prefix of {PREFIX.size} bytes.")
    magic, size, reserved = PREFIX.unpack_from(body)
    if magic != MAGIC or reserved != 0:
        raise ValueError("The command does not begin with the prefix of this version of rlrun.")
    rest = body[PREFIX.size :]
    if size > len(rest):
        raise ValueError(f"The command's prefix declares a header of {size} bytes, but {len(rest)} bytes follow.")
    command = _read_header(bytes(rest[:size]))
    if not isinstance(command, ForwardBackward) and size > MAX_SMALL_HEADER:
        raise ValueError(f"The command's header has {size} bytes; the limit is {MAX_SMALL_HEADER}. Send less metadata.")
    if isinstance(command, SaveState):
        check_value(command.user_metadata, "user_metadata")
    buffers, wanted = rest[size:], 0
    if isinstance(command, ForwardBackward):
        for index, datum in enumerate(command.datums):
            _check_sizes(index, datum)
        wanted = sum(datum.size for datum in command.datums)
    if len(buffers) != wanted:
        raise ValueError(f"The command's header describes {wanted} bytes of tensors, but {len(buffers)} bytes follow.")
    return command, buffers


def _read_header(data: bytes) -> Command:
    """Parse a header into its command. Raises ValueError, which keeps no reference to the input."""
    try:
        header = read_fast(data, HEADER, limits_of(CommandHeader), allows_nan=True)
        _check_names(header)
        return CommandHeader.model_validate(header).command
    except InputInvalid as error:
        message = str(error)
    except ValidationError as error:
        message = str(to_input_invalid(error, f"{HEADER} is not a valid CommandHeader of this version"))
    raise ValueError(message)


def _check_names(header: Any) -> None:
    """Raise ValueError if an object of the header has many names. pydantic needs a kilobyte for each unknown one."""
    level = [header]
    while level:
        objects = [value for value in level if isinstance(value, dict)]
        if any(len(each) > MAX_NAMES for each in objects):
            raise ValueError(f"{HEADER} has an object with more than {MAX_NAMES} names.")
        lists = [value for value in level if isinstance(value, list)]
        level = [value for each in objects for name, value in each.items() if name not in METADATA]
        level += [value for each in lists for value in each]


def _check_sizes(index: int, datum: DatumHeader) -> None:
    """Raise ValueError if two tensors have the same name, or sizes do not match a tensor's shape."""
    names = [tensor.name for tensor in datum.tensors]
    if len(set(names)) != len(names):
        raise ValueError(f"datums[{index}] has two tensors with the same name. Send each tensor once.")
    for tensor in datum.tensors:
        if not _has_matching_sizes(tensor):
            raise ValueError(
                f"datums[{index}].{tensor.name}: buffers of {tensor.sizes} bytes are not a {tensor.dtype.value} tensor "
                f"of shape {tensor.shape}. Send a dense tensor, or a CSR matrix with int64 offsets and columns."
            )


def _has_matching_sizes(tensor: TensorHeader) -> bool:
    if len(tensor.sizes) == 1:
        return tensor.sizes[0] == math.prod(tensor.shape) * tensor.dtype.size
    if len(tensor.sizes) != 3 or len(tensor.shape) != 2:
        return False
    values, offsets, columns = tensor.sizes
    count, odd = divmod(values, tensor.dtype.size)
    return not odd and offsets == OFFSET_BYTES * (tensor.shape[0] + 1) and columns == OFFSET_BYTES * count
