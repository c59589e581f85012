"""Lines of records."""

import json

import pytest
from rlrun.storage.samples.record import SampleRecord, messages_of

from tests.support.sample_records import record


def test_a_line_holds_all_fields_and_reads_back() -> None:
    written = record(cause=None, info={"level": 3})
    line = written.to_line()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line)["v"] == 2
    assert json.loads(line)["rewards"]["overlap"] == {"value": 0.5, "weight": 0.8}
    assert SampleRecord.from_line(line) == written


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "not JSON"),
        ("[1]", "list instead of an object"),
        ('{"v": 1}', "version '1'"),
        ('{"step": 3}', "version 'None'"),
        ('{"v": 3}', "version '3'"),
        ('{"v": "2"}', "version '2'"),
        ('{"v": 2, "step": -1}', "step: "),
        ("[" * 100_000, "not JSON"),
        (record().to_line().decode().replace('"reward":0.5', '"reward":NaN'), "reward: "),
    ],
)
def test_a_line_that_is_no_record_names_the_problem(line: str, told: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared below)
        SampleRecord.from_line(line)
    assert told in str(error.value)


def test_fields_of_a_later_program_are_ignored() -> None:
    line = json.loads(record().to_line()) | {"entropy": 1.5}
    assert SampleRecord.from_line(json.dumps(line)) == record()


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        (None, []),
        ([], []),
        ("hello", [{"role": "user", "content": "hello"}]),
        ([{"role": "user", "content": "hello"}], [{"role": "user", "content": "hello"}]),
        (["a", "b"], [{"role": "user", "content": '["a", "b"]'}]),
    ],
)
def test_any_conversation_becomes_messages(value: object, messages: list[dict[str, str]]) -> None:
    assert messages_of(value, "user") == messages
