"""Results of commands have the shape of their targets."""

import struct

import pytest
from rlrun.protocol.client_command import (
    MAX_DATUMS,
    MAX_RESULT_BYTES,
    MAX_TARGETS,
    CommandResult,
    DatumHeader,
    TensorHeader,
    TensorType,
    frame,
)
from rlrun_trainer.sessions import client_session

from tests.support import trainer_requests
from tests.support.client_commands import read_result


@pytest.mark.parametrize(("shapes", "widths"), [([[2], [3]], []), ([[2, 2], [3]], [2, 0]), ([[2, 2], [1, 5]], [2, 5])])
def test_a_result_has_the_number_of_targets_of_each_token(shapes: list[list[int]], widths: list[int]) -> None:
    datums, logprobs = [], []
    for shape in shapes:
        count = shape[0] * shape[-1] ** (len(shape) - 1)
        tensor = TensorHeader(name="target_tokens", dtype=TensorType.int64, shape=shape, sizes=[8 * count])
        datums.append(DatumHeader(length=shape[0], tensors=[tensor]))
        logprobs.append(struct.pack(f"<{count}f", *([-1.0] * count)))
    result, values = read_result(client_session._result({"loss:sum": 1.0}, logprobs, datums))
    assert result.widths == widths
    assert [len(each) for each in values] == result.lengths == [len(data) // 4 for data in logprobs]


def test_rlrun_tinker_receives_the_largest_result() -> None:
    lengths = [MAX_TARGETS // MAX_DATUMS] * MAX_DATUMS
    metrics = dict.fromkeys(("loss:sum", "tokens:sum"), -1.2345678901234567e-300)
    header = frame(CommandResult(metrics=metrics, lengths=lengths, widths=lengths))
    assert len(header) + 4 * MAX_TARGETS <= MAX_RESULT_BYTES


@pytest.mark.parametrize(
    ("run", "expected"),
    [("ts-0123456789ab-3", "tinker://ts-0123456789ab.team:train:3/weights/last"), ("of-kubectl", "last")],
)
def test_messages_name_a_saved_state_by_the_path_that_loads_it(run: str, expected: str) -> None:
    spec = trainer_requests.spec("s3://bucket/run", run_name=run)
    assert client_session.saved_path(spec, "last") == expected
