"""`forward_backward` of the Tinker API: converts a protobuf request to a command for the trainer, and its result to
protobuf.

Field numbers are those of the package `tinker_public` in tinker 0.38.0.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any

from pydantic import ValidationError
from rlrun.api.base.received import InputInvalid, parse, to_input_invalid
from rlrun.protocol.client_command import (
    MAGIC,
    MAX_DATUMS,
    MAX_TENSORS,
    PREFIX,
    CommandHeader,
    CommandResult,
    DatumHeader,
    ForwardBackward,
    TensorHeader,
    TensorType,
    frame,
)

from rlrun_tinker.wire import (
    Value,
    WireInvalid,
    WireReader,
    bytes_field,
    double,
    double_field,
    entry_field,
    integer_field,
    integers,
    signed,
    text,
    view,
)

SOURCE = "The body"
MAX_FIELDS = 2**19
"""Maximum number of fields of a request, sufficient for MAX_DATUMS datums with MAX_TENSORS tensors each."""
MAX_CHUNKS = 1024
"""Maximum number of chunks of a datum. Even a short chunk takes 200 bytes of memory."""
TENSOR_TYPES = {1: TensorType.float32, 2: TensorType.int64, 3: TensorType.int32, 4: TensorType.bfloat16}
FLOAT32 = 1
TOKEN_BYTES = 4
MAX_DIMENSIONS = 2
RECORD = "ArrayRecord"
UNSUPPORTED_LOSSES = {
    "stable_reinforce": "its formula is not public. Use loss_fn='importance_sampling', 'ppo' or 'cispo'",
    "custom": "this server does not run custom losses. Use forward_backward_custom with a function",
}


@dataclass
class ForwardBackwardRequest:
    """Decoded request."""

    model_id: str = ""
    seq: int = 0
    loss: str = ""
    config: dict[str, float] = field(default_factory=dict)
    forward_only: bool = False
    datums: list[DatumHeader] = field(default_factory=list)
    buffers: list[bytes | memoryview] = field(default_factory=list)
    """Tokens and tensors. Most of them are views of the request's body."""

    def command(self) -> bytes:
        """Return the command for the trainer. Raises InputInvalid."""
        try:
            command = ForwardBackward(
                loss=self.loss, loss_config=self.config, forward_only=self.forward_only, datums=self.datums
            )
        except ValidationError as error:
            invalid = to_input_invalid(error, SOURCE)
        else:
            return frame(CommandHeader(command=command), self.buffers)
        raise invalid


def decode_request(body: bytes, request: ForwardBackwardRequest | None = None) -> ForwardBackwardRequest:
    """Decode a request. Equal requests become equal commands, regardless of the order of map entries. Raises
    InputInvalid.

    `request` receives the decoded fields, including those before an invalid field.
    """
    request = request or ForwardBackwardRequest()
    try:
        _decode(body, request)
        return request
    except WireInvalid as error:
        cause = str(error)
    except ValidationError as error:
        raise to_input_invalid(error, SOURCE) from None
    raise InputInvalid(SOURCE, f"is not a valid ForwardBackwardRequest: it {cause}.")


def _decode(body: bytes, request: ForwardBackwardRequest) -> None:
    reader = WireReader(MAX_FIELDS)
    numbers, values = dict[str, float](), dict[str, float]()
    for number, value in reader.fields(memoryview(body)):
        match number:
            case 1:
                request.model_id = text(value)
            case 2:
                request.seq = signed(value)
            case 3:
                if len(request.datums) == MAX_DATUMS:
                    raise InputInvalid(SOURCE, f"has more than {MAX_DATUMS} datums. Send fewer per request.")
                _add_datum(reader, view(value), request)
            case 4:
                request.loss = text(value)
            case 5:
                key, entry = _entry(reader, value)
                numbers[key] = 0.0 if entry is None else double(entry)
            case 6:
                request.forward_only = bool(signed(value))
            case 7:
                key, entry = _entry(reader, value)
                values[key] = _config_number(reader, key, entry)
    if request.loss in UNSUPPORTED_LOSSES:
        raise InputInvalid("`loss_fn`", f"{request.loss!r} is not supported: {UNSUPPORTED_LOSSES[request.loss]}.")
    request.config = dict(sorted((values or numbers).items()))
    for key, each in request.config.items():
        if not math.isfinite(each):
            raise InputInvalid(f"`loss_fn_config` {key[:64]!r}", "is not a finite number.")


def _entry(reader: WireReader, value: Value) -> tuple[str, Value | None]:
    """Return the key and value of a map entry. The value is None if the entry omits it, which means zero or empty."""
    key, found = "", None
    for number, each in reader.fields(view(value)):
        if number == 1:
            key = text(each)
        elif number == 2:
            found = each
    return key, found


def _config_number(reader: WireReader, key: str, entry: Value | None) -> float:
    for number, value in () if entry is None else reader.fields(view(entry)):
        if number == 1:
            return double(value)
        if number == 2:
            raise InputInvalid(f"`loss_fn_config` {key[:64]!r}", "must be a number: this server's losses take no text.")
    return 0.0


def _add_datum(reader: WireReader, message: memoryview, request: ForwardBackwardRequest) -> None:
    place = f"`data` {len(request.datums)}"
    tokens, inputs = list[memoryview](), dict[str, Value | None]()
    for number, value in reader.fields(message):
        if number == 1:
            if len(tokens) == MAX_CHUNKS:
                raise InputInvalid(f"{place} `model_input`", f"has more than {MAX_CHUNKS} chunks. Join them.")
            tokens.append(_tokens(reader, view(value), place))
        elif number == 2:
            key, entry = _entry(reader, value)
            inputs[key] = entry
            if len(inputs) > MAX_TENSORS:
                raise InputInvalid(
                    place, f"has more than {MAX_TENSORS} `loss_fn_inputs`. Send those that the loss uses."
                )
    size = sum(map(len, tokens))
    if size == 0:
        raise InputInvalid(f"{place} `model_input`", "has no tokens.")
    request.buffers.append(tokens[0] if len(tokens) == 1 else b"".join(tokens))
    tensors = [_tensor(reader, name, entry, place, request) for name, entry in sorted(inputs.items())]
    request.datums.append(DatumHeader(length=size // TOKEN_BYTES, tensors=tensors))


def _tokens(reader: WireReader, chunk: memoryview, place: str) -> memoryview:
    found = chunk[:0]
    for number, value in reader.fields(chunk):
        if number in (2, 3):
            message = "has an image or audio, which this server does not train on. Send chunks of text only."
            raise InputInvalid(f"{place} `model_input`", message)
        if number == 1:
            for inner, each in reader.fields(view(value)):
                if inner == 1:
                    found = view(each)
    if len(found) % TOKEN_BYTES:
        raise InputInvalid(f"{place} `model_input`", "has tokens that are not int32.")
    return found


def _tensor(
    reader: WireReader, name: str, entry: Value | None, place: str, request: ForwardBackwardRequest
) -> TensorHeader:
    where = f"{place} `loss_fn_inputs` {name[:64]!r}"
    parts, shape, code = list[memoryview](), list[int](), 0
    for number, value in () if entry is None else reader.fields(view(entry)):
        match number:
            case 1:
                parts = [view(value)]
            case 2:
                found = {1: value[:0], 2: value[:0], 3: value[:0]} if isinstance(value, memoryview) else {}
                found |= {n: view(each) for n, each in reader.fields(view(value)) if n in found}
                parts = list(found.values())
            case 3:
                code = signed(value)
            case 4:
                shape += integers(value, MAX_DIMENSIONS + 1)
                if len(shape) > MAX_DIMENSIONS:
                    raise InputInvalid(where, "has more than two dimensions. Supported shapes are [T] and [T, K].")
    dtype = TENSOR_TYPES.get(code)
    if dtype is None:
        raise InputInvalid(where, f"has the unknown dtype {code}. Send float32 or int64.")
    parts = parts or [memoryview(b"")]
    if not shape:
        # The SDK omits the shape of a list.
        shape = [len(parts[0]) // dtype.size]
    if len(parts) == 1 and math.prod(shape) * dtype.size != len(parts[0]):
        raise InputInvalid(where, f"is {len(parts[0])} bytes long and so not a {dtype.value} tensor of shape {shape}.")
    request.buffers += parts
    return TensorHeader(name=name, dtype=dtype, shape=shape, sizes=[len(part) for part in parts])


def read_result(data: bytes) -> tuple[CommandResult, memoryview]:
    """Return the header of a result and its log-probabilities. Raises InputInvalid."""
    source = "The trainer's result"
    if len(data) < PREFIX.size:
        raise InputInvalid(source, "is incomplete.")
    magic, size, _ = PREFIX.unpack_from(data)
    if magic != MAGIC or PREFIX.size + size > len(data):
        raise InputInvalid(source, "does not have the expected format, possibly because the trainer's version differs.")
    header = parse(CommandResult, data[PREFIX.size : PREFIX.size + size], source)
    arrays = memoryview(data)[PREFIX.size + size :]
    if any(length < 0 for length in header.lengths) or 4 * sum(header.lengths) != len(arrays):
        raise InputInvalid(source, "has a different number of log-probabilities than its header declares.")
    if header.widths and len(header.widths) != len(header.lengths):
        raise InputInvalid(source, "does not have one width per datum.")
    return header, arrays


def encode_output(result: CommandResult, arrays: memoryview) -> bytes:
    """Return a result as a `ForwardBackwardOutput`. Adjacent datums of equal width share one record."""
    parts, at = [bytes_field(1, RECORD.encode())], 0
    widths: Sequence[int] = result.widths or [0] * len(result.lengths)
    for width, group in groupby(zip(widths, result.lengths, strict=True), key=lambda pair: pair[0]):
        ends = list(accumulate((4 * length for _, length in group), initial=0))
        parts.append(bytes_field(2, _record(arrays[at : at + ends[-1]], ends, width)))
        at += ends[-1]
    metrics: dict[str, Any] = result.metrics
    parts += [entry_field(3, name, double_field(2, value)) for name, value in metrics.items()]
    return b"".join(parts)


def _record(data: memoryview, ends: Sequence[int], width: int) -> bytes:
    """Return an ArrayRecord. `ends` contains the byte offset of each datum in `data`, and the size of `data`. `width`
    is 0 for one-dimensional datums.
    """
    tensor = [
        bytes_field(1, data),
        bytes_field(2, struct.pack(f"<{len(ends)}q", *ends)),
        integer_field(3, FLOAT32),
        *([integer_field(4, width)] if width else []),
    ]
    logprobs = entry_field(2, "logprobs", bytes_field(2, b"".join(tensor)))
    return bytes_field(1, RECORD.encode()) + logprobs + integer_field(3, len(ends) - 1)
