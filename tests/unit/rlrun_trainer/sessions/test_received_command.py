"""Bodies of commands: what is consistent is read, and every other body has an error that names what is wrong."""

import json
import struct
import tracemalloc

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
from rlrun_trainer.sessions.received_command import HEADER_MEMORY, ReceivedCommand

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


def with_metadata(text: str) -> bytes:
    header = f'{{"command":{{"kind":"save","savedAs":"weights","name":"a","userMetadata":{{"x":{text}}}}}}}'.encode()
    return PREFIX.pack(MAGIC, len(header), 0) + header


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NaN", "not a number in JSON"),
        ("9" * 4000, "too many digits"),
        ("[" * 40 + "]" * 40, "nested deeper"),
        (f"[{'[],' * 60_000}[]]", "Send less metadata"),
    ],
)
def test_metadata_that_cannot_be_stored_is_refused(text: str, message: str) -> None:
    assert message in error_of(with_metadata(text))
    assert isinstance(ReceivedCommand.read(with_metadata('["é", 1.5, {"y": null}]')).command, SaveState)


UNKNOWN = ",".join(f'"{number:x}":1' for number in range(200_000))
WRONG_TENSOR = '{"a":1,"b":1,"name":1,"dtype":1,"shape":["a","b"],"sizes":["a","b","c"]}'
WRONG_DATUM = f'{{"length":0,"tensors":[{",".join([WRONG_TENSOR] * 8)}]}}'


@pytest.mark.parametrize(
    "text",
    [
        f'{{"command":{{"kind":"optim_step"}},{UNKNOWN}}}',
        f'{{"command":{{"kind":"optim_step",{UNKNOWN}}}}}',
        f'{{"command":{{"kind":"forward_backward","loss":"x","datums":[{{"length":1,{UNKNOWN}}}]}}}}',
        f'{{"command":{{"kind":"forward_backward","loss":"x","datums":[{",".join([WRONG_DATUM] * 4096)}]}}}}',
    ],
    ids=["header", "command", "datum", "datums"],
)
def test_a_header_with_many_faults_costs_as_much_as_a_valid_one(text: str) -> None:
    body = PREFIX.pack(MAGIC, len(text), 0) + text.encode()
    tracemalloc.start()
    error_of(body)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < HEADER_MEMORY * len(body)


def test_metadata_may_have_many_names() -> None:
    names = ",".join(f'"{number:x}":1' for number in range(1000))
    assert isinstance(ReceivedCommand.read(with_metadata(f"{{{names}}}")).command, SaveState)


def test_the_size_of_a_command_covers_its_objects_in_memory() -> None:
    tensors = [TensorHeader(name=str(number), dtype=TensorType.int32, shape=[0], sizes=[0]) for number in range(8)]
    datums = [DatumHeader(length=1, tensors=tensors)] * 1000
    bodies = [body_of(ForwardBackward(loss="x", datums=datums), bytes(4000)), with_metadata(f"[{'[],' * 40_000}[]]")]
    bodies.append(b"no command" * 100_000)
    for body in bodies:
        tracemalloc.start()
        received = ReceivedCommand.read(body)
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert held <= received.size + 10_000


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
        (b"", "shorter than its prefix"),
        (b"x" * 40, "does not begin with the prefix"),
        (PREFIX.pack(MAGIC, 2, 1) + b"{}", "does not begin with the prefix"),
        (PREFIX.pack(MAGIC, 3, 0) + b"{}", "a header of 3 bytes, but 2 bytes follow"),
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
    assert "two tensors with the same name" in error_of(body_of(command, bytes(12)))


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
