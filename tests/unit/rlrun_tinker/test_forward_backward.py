"""`forward_backward` between protobuf and the trainer's commands."""

import contextlib
import math
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlrun.api.base.received import InputInvalid, parse
from rlrun.protocol.client_command import PREFIX, CommandHeader, CommandResult, ForwardBackward, frame
from rlrun_tinker import wire
from rlrun_tinker.forward_backward import decode_request, encode_output, read_result

from tests.support.tinker_messages import message

MODEL_ID = "ts-0123456789ab.team:train:0"


def request(*datums: Any, loss: str = "cross_entropy", **fields: Any) -> Any:
    made = message("ForwardBackwardRequest")
    made.model_id, made.seq_id, made.loss_fn = MODEL_ID, 3, loss
    for name, value in fields.items():
        setattr(made, name, value)
    made.data.extend(datums)
    return made


def datum(tokens: list[int], *more: list[int], **tensors: Any) -> Any:
    made = message("Datum")
    for chunk in (tokens, *more):
        made.model_input.add().encoded_text.tokens = struct.pack(f"<{len(chunk)}i", *chunk)
    for name, tensor in tensors.items():
        made.loss_fn_inputs[name].CopyFrom(tensor)
    return made


def dense(data: bytes, dtype: int, *shape: int) -> Any:
    made = message("Tensor")
    made.dense, made.dtype, made.shape[:] = data, dtype, shape
    return made


def floats(*values: float) -> Any:
    return dense(struct.pack(f"<{len(values)}f", *values), 1, len(values))


def decode(made: Any) -> tuple[ForwardBackward, bytes]:
    data = decode_request(made.SerializeToString()).command()
    _, size, _ = PREFIX.unpack_from(data)
    command = parse(CommandHeader, data[PREFIX.size : PREFIX.size + size]).command
    assert isinstance(command, ForwardBackward)
    buffers = data[PREFIX.size + size :]
    assert len(buffers) == sum(datum.size for datum in command.datums)
    return command, buffers


def test_chunks_become_one_sequence_and_tensors_follow_in_the_order_of_their_names() -> None:
    targets = dense(struct.pack("<3q", 2, 3, 4), 2, 3)
    made = request(datum([1, 2], [3], weights=floats(0.5, -1.0, 0.0), target_tokens=targets), datum([9]))
    command, buffers = decode(made)
    first, second = command.datums
    assert [(t.name, t.dtype.value, t.shape, t.sizes) for t in first.tensors] == [
        ("target_tokens", "int64", [3], [24]),
        ("weights", "float32", [3], [12]),
    ]
    assert (first.length, second.length, second.tensors) == (3, 1, [])
    assert buffers == struct.pack("<3i3q3fi", 1, 2, 3, 2, 3, 4, 0.5, -1.0, 0.0, 9)
    assert (command.loss, command.forward_only) == ("cross_entropy", False)
    assert decode(request(datum([1]), forward_only=True))[0].forward_only


def test_equal_requests_are_equal_commands() -> None:
    """The order of a map is not defined, and the trainer compares commands by their bytes."""
    first = request(datum([1], a=floats(1), b=floats(2)), loss="ppo")
    second = request(datum([1], b=floats(2), a=floats(1)), loss="ppo")
    for made, names in ((first, "xy"), (second, "yx")):
        for name in names:
            made.loss_fn_config_v2[name].number = 0.5
    assert decode_request(first.SerializeToString()).command() == decode_request(second.SerializeToString()).command()


def test_sparse_tensors_keep_their_three_parts() -> None:
    tensor = message("Tensor")
    csr = tensor.sparse_csr
    csr.values, csr.crow_indices = struct.pack("<2f", 0.25, 0.75), struct.pack("<3q", 0, 1, 2)
    csr.col_indices = struct.pack("<2q", 0, 3)
    tensor.dtype, tensor.shape[:] = 1, [2, 4]
    command, buffers = decode(request(datum([1, 2], weights=tensor)))
    ((header,),) = (datum.tensors for datum in command.datums)
    assert (header.shape, header.sizes) == ([2, 4], [8, 24, 16])
    assert buffers[8:] == csr.values + csr.crow_indices + csr.col_indices


def test_a_list_has_no_shape() -> None:
    command, _ = decode(request(datum([1, 2], weights=dense(bytes(8), 1))))
    assert command.datums[0].tensors[0].shape == [2]


def test_version_two_of_the_configuration_wins() -> None:
    made = request(datum([1]), loss="ppo")
    made.loss_fn_config["clip_low_threshold"] = 0.1
    assert decode(made)[0].loss_config == {"clip_low_threshold": 0.1}
    made.loss_fn_config_v2["clip_high_threshold"].number = 0.0
    assert decode(made)[0].loss_config == {"clip_high_threshold": 0.0}


def image() -> Any:
    made = message("Datum")
    made.model_input.add().image.data = b"png"
    return made


def with_text() -> Any:
    made = request(datum([1]))
    made.loss_fn_config_v2["loss_id"].text = "x"
    return made


def with_nan() -> Any:
    made = request(datum([1]))
    made.loss_fn_config["beta"] = math.nan
    return made


@pytest.mark.parametrize(
    ("made", "cause"),
    [
        (request(image()), "image or audio"),
        (request(datum([])), "no tokens"),
        (request(), "datums"),
        (request(*[datum([1])] * 4097), "more than 4096 datums"),
        (request(datum([1]), loss="stable_reinforce"), "not public"),
        (request(datum([1]), loss="custom"), "forward_backward_custom"),
        (request(datum([1]), loss=""), "loss"),
        (with_text(), "must be a number"),
        (with_nan(), "not a finite number"),
        (request(datum([1], weights=dense(b"", 9, 0))), "unknown dtype 9"),
        (request(datum([1], weights=dense(b"abcd", 1, 2))), "not a float32 tensor of shape"),
        (request(datum([1], weights=dense(b"", 1, -1, 0))), "greater than or equal to 0"),
        (request(datum([1], weights=dense(b"", 1, 2**40, 0))), "less than or equal to"),
        (request(datum([1], weights=dense(b"", 1, 1, 1, 1))), "two dimensions"),
        (request(datum([1], **{f"t{i}": floats(1) for i in range(9)})), "more than 8"),
        (request(datum([1], **{"n" * 65: floats(1)})), "at most 64"),
    ],
)
def test_what_is_not_supported_names_the_field(made: Any, cause: str) -> None:
    with pytest.raises(InputInvalid, match=cause):
        decode(made)


def test_many_small_messages_are_refused_before_they_take_memory() -> None:
    with pytest.raises(InputInvalid, match="more than 1024 chunks"):
        decode_request(b"\x1a\x82\x80\x80\x01" + b"\x0a\x00" * (2**20 + 1))
    with pytest.raises(InputInvalid, match="more than 524288 fields"):
        decode_request(b"\x40\x00" * (2**19 + 1))


def test_a_shape_of_many_numbers_is_refused_before_it_takes_memory() -> None:
    tensor = wire.integer_field(3, 1) + wire.bytes_field(4, b"\x01" * 2**22)
    chunk = wire.bytes_field(1, wire.bytes_field(1, wire.bytes_field(1, bytes(4))))
    body = wire.bytes_field(3, chunk + wire.entry_field(2, "weights", wire.bytes_field(2, tensor)))
    tracemalloc.start()
    try:
        with pytest.raises(InputInvalid, match="two dimensions"):
            decode_request(body)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@settings(max_examples=200)
@given(st.data())
def test_damaged_requests_are_refused_or_read(data: st.DataObject) -> None:
    targets = dense(struct.pack("<2q", 2, 3), 2, 2)
    whole = request(datum([1, 2], target_tokens=targets, weights=floats(1, 2))).SerializeToString()
    body = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for place in data.draw(st.lists(st.integers(0, max(0, len(body) - 1)), max_size=5)):
        if body:
            body[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InputInvalid):
        decode_request(bytes(body)).command()


def output(result: CommandResult, *arrays: bytes) -> Any:
    made = message("ForwardBackwardOutput")
    made.ParseFromString(encode_output(*read_result(frame(result, arrays))))
    return made


def test_a_result_has_the_log_probabilities_of_each_datum() -> None:
    result = CommandResult(metrics={"loss:sum": 1.5, "bad:mean": math.nan}, lengths=[2, 0, 1])
    made = output(result, struct.pack("<3f", -1, -2, -3))
    assert made.loss_fn_output_type == "ArrayRecord"
    assert made.metrics["loss:sum"] == 1.5
    assert math.isnan(made.metrics["bad:mean"])
    (record,) = made.loss_fn_outputs
    assert (record.type_tag, record.num_datums) == ("ArrayRecord", 3)
    tensor = record.fields["logprobs"]
    assert struct.unpack("<3f", tensor.data) == (-1, -2, -3)
    assert struct.unpack("<4q", tensor.offsets) == (0, 8, 8, 12)
    assert (tensor.dtype, list(tensor.trailing_shape)) == (1, [])


def test_matrices_of_another_width_are_another_record() -> None:
    result = CommandResult(lengths=[4, 6, 2], widths=[2, 2, 0])
    first, second = output(result, bytes(48)).loss_fn_outputs
    assert (first.num_datums, list(first.fields["logprobs"].trailing_shape)) == (2, [2])
    assert (second.num_datums, list(second.fields["logprobs"].trailing_shape)) == (1, [])
    assert len(second.fields["logprobs"].data) == 8


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RLCMD1\n\0",
        PREFIX.pack(b"OTHER\0\0\0", 2, 0) + b"{}",
        PREFIX.pack(b"RLCMD1\n\0", 2**31, 0),
        frame(CommandResult(lengths=[2]), [b"abcd"]),
        frame(CommandResult(lengths=[1], widths=[1, 1]), [b"abcd"]),
    ],
)
def test_a_damaged_result_is_refused(data: bytes) -> None:
    with pytest.raises(InputInvalid):
        read_result(data)
