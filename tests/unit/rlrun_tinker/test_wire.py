"""Protocol Buffers as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun_tinker import wire
from rlrun_tinker.wire import WireInvalid, WireReader

from tests.support.tinker_messages import message


def fields(data: bytes, max_fields: int = 1000) -> list[tuple[int, int | memoryview]]:
    return list(WireReader(max_fields).fields(memoryview(data)))


@given(
    st.integers(-(2**63), 2**63 - 1), st.binary(max_size=300), st.floats(allow_nan=False).map(lambda value: value + 0.0)
)
def test_fields_are_those_that_protobuf_writes(number: int, data: bytes, value: float) -> None:
    tensor = message("BatchedTensor")
    tensor.data, tensor.trailing_shape[:] = data, [number, 0, 7]
    found = dict(fields(tensor.SerializeToString()))
    assert found.get(1, b"") == data
    assert wire.integers(found[4], 3) == [number, 0, 7]
    assert wire.integers(found[4], 2) == [number, 0]
    config = message("LossConfigValue")
    config.number = value
    assert [wire.double(each) for _, each in fields(config.SerializeToString())] == ([value] if value else [])


@given(st.integers(0, 2**64 - 1), st.binary(max_size=300), st.floats(allow_nan=False))
def test_written_fields_are_read_by_protobuf(number: int, data: bytes, value: float) -> None:
    tensor = message("BatchedTensor")
    tensor.ParseFromString(wire.bytes_field(1, data) + wire.integer_field(4, number))
    assert (tensor.data, tensor.trailing_shape[0] % 2**64) == (data, number)
    output = message("ForwardBackwardOutput")
    output.ParseFromString(wire.entry_field(3, "loss:sum", wire.double_field(2, value)))
    assert dict(output.metrics) == {"loss:sum": value}


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_read(data: bytes) -> None:
    try:
        found = fields(data)
    except WireInvalid:
        return
    assert all(isinstance(value, int | memoryview) for _, value in found)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "ends within a field"),
        (b"\x0a\x05ab", "ends within a field"),
        (b"\x08" + b"\xff" * 11, "more than 64 bits"),
        (b"\x08", "ends within a number"),
        (b"\x0b", "unknown wire type 3"),
        (b"\x02\x00", "the number 0"),
        (b"\x0a\x00" * 1001, "more than 1000 fields"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, cause: str) -> None:
    with pytest.raises(WireInvalid, match=cause):
        fields(data)
