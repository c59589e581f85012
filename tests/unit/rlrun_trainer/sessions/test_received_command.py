"""Bodies of commands: what is consistent is read, and every other body has an error that names what is wrong."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun.protocol.client_command import (
    MAGIC,
    PREFIX,
    CommandError,
    DatumHeader,
    ErrorCategory,
    ForwardBackward,
    OptimStep,
    SaveState,
    TensorHeader,
    TensorType,
)
from rlrun_trainer.sessions.received_command import ReceivedCommand

from tests.support.client_commands import body_of, forward_backward, optim_step, save


def error_of(body: bytes) -> str:
    command = ReceivedCommand.read(body).command
    assert isinstance(command, CommandError)
    assert command.category is ErrorCategory.user
    return command.message


def test_a_command_is_read_with_its_buffers() -> None:
    received = ReceivedCommand.read(forward_backward([1, 2, 3], [4]))
    assert isinstance(received.command, ForwardBackward)
    assert [datum.length for datum in received.command.datums] == [3, 1]
    assert struct.unpack_from("<3i", received.buffers) == (1, 2, 3)
    assert isinstance(ReceivedCommand.read(optim_step()).command, OptimStep)
    assert isinstance(ReceivedCommand.read(save("a")).command, SaveState)
    assert ReceivedCommand.read(save("a")).digest != ReceivedCommand.read(save("b")).digest


def tensor(shape: list[int], *sizes: int, dtype: TensorType = TensorType.float32) -> bytes:
    header = TensorHeader(name="weights", dtype=dtype, shape=shape, sizes=list(sizes))
    command = ForwardBackward(loss="cross_entropy", datums=[DatumHeader(length=1, tensors=[header])])
    return body_of(command, bytes(4 + sum(sizes)))


def test_dense_and_sparse_tensors_have_the_sizes_of_their_shapes() -> None:
    for body in (tensor([3], 12), tensor([3, 2], 24), tensor([3, 2], 8, 32, 16), tensor([0], 0)):
        assert isinstance(ReceivedCommand.read(body).command, ForwardBackward)


@pytest.mark.parametrize(
    "body",
    [
        tensor([3], 8),
        tensor([3], 12, 32, 24),
        tensor([3, 2], 8, 24, 16),
        tensor([3, 2], 8, 32, 8),
        tensor([3, 2], 7, 32, 8),
        tensor([3, 2], 12, 12),
        tensor([2**24, 2**24], 4),
    ],
)
def test_a_tensor_of_another_size_than_its_shape_is_named(body: bytes) -> None:
    assert "datums[0].weights: buffers of" in error_of(body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "fewer than its prefix"),
        (b"x" * 40, "does not begin with the prefix"),
        (PREFIX.pack(MAGIC, 2, 1) + b"{}", "does not begin with the prefix"),
        (PREFIX.pack(MAGIC, 3, 0) + b"{}", "header has 3 bytes, but 2 bytes follow"),
        (PREFIX.pack(MAGIC, 2, 0) + b"{}", "command: Field required"),
        (optim_step() + b"x", "describes 0 bytes of tensors, but 1 bytes follow"),
        (forward_backward([1, 2])[:-1], "describes 32 bytes of tensors, but 31 bytes follow"),
        (PREFIX.pack(MAGIC, 1, 0) + b"\xff", "is not"),
    ],
)
def test_a_body_that_is_no_command_has_an_error(body: bytes, message: str) -> None:
    assert message in error_of(body)


def test_a_learning_rate_that_is_not_a_number_is_named() -> None:
    for text in (b"NaN", b"-1.0", b"1e9"):
        header = optim_step()[PREFIX.size :].replace(b"0.001", text)
        assert "learningRate" in error_of(PREFIX.pack(MAGIC, len(header), 0) + header), text


def test_two_tensors_with_one_name_are_refused() -> None:
    header = TensorHeader(name="weights", dtype=TensorType.float32, shape=[1], sizes=[4])
    command = ForwardBackward(loss="ppo", datums=[DatumHeader(length=1, tensors=[header, header])])
    assert "two tensors with one name" in error_of(body_of(command, bytes(12)))


VALID = [forward_backward([1, 2, 3], [4]), optim_step(), save("a", ttl_seconds=3600), tensor([3, 2], 8, 32, 16)]


@given(st.sampled_from(VALID), st.integers(0, 400), st.binary(max_size=8), st.integers(0, 8))
def test_a_changed_body_is_a_command_or_an_error(body: bytes, place: int, inserted: bytes, removed: int) -> None:
    received = ReceivedCommand.read(body[:place] + inserted + body[place + removed :])
    assert received.command is not None


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), st.lists, max_leaves=5))
def test_any_json_as_a_header_is_a_command_or_an_error(value: object) -> None:
    for content in (value, {"command": value}, {"command": {"kind": "save", "savedAs": "weights", "name": value}}):
        text = json.dumps(content).encode()
        assert isinstance(
            ReceivedCommand.read(PREFIX.pack(MAGIC, len(text), 0) + text).command, CommandError | SaveState
        )
