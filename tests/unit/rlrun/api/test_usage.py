"""The usage log: lines are added once, and never changed."""

from datetime import UTC, datetime, timedelta
from typing import Any

from rlrun.api.usage import UsageRecord, read_records, with_records

END = datetime(2026, 1, 31, 23, 59, tzinfo=UTC)


def record(attempt: int = 1, hours: float = 2, end: datetime = END, **fields: Any) -> UsageRecord:
    return UsageRecord(
        namespace="team", name="reverse", uid="u", attempt=attempt, gpus=2,
        start_time=end - timedelta(hours=hours), end_time=end, **fields,
    )  # fmt: skip


def test_lines_are_added_once_and_others_stay_as_they_are() -> None:
    first = with_records(b"", [record()])
    assert first is not None
    assert with_records(first, [record(user="changed")]) is None, "a repetition after a lost answer"
    odd = b'{"of": "another version"}\nno JSON'
    second = with_records(first + odd, [record(), record(2)])
    assert second is not None
    assert second.startswith(first + odd + b"\n")
    assert list(read_records(second)) == [record(), record(2)]


def test_a_month_counts_only_its_part_of_an_attempt() -> None:
    long = record(hours=24 * 40)
    january = datetime(2026, 1, 1, tzinfo=UTC)
    assert long.seconds(january, january + timedelta(days=31)) == (END - january).total_seconds()
    assert long.seconds(END, END + timedelta(days=1)) == 0
