"""Lines of logs: times, levels, filters and order."""

from datetime import UTC, datetime

import pytest
from rlrun.constants import Role
from rlrun_server.rest.logs import log_lines
from rlrun_server.rest.logs.log_lines import (
    LineFilter,
    LogOrigin,
    ParsedLine,
    compile_pattern,
    level_of,
    merge_lines,
    newest,
    parse_lines,
    parse_since,
    time_text,
)
from rlrun_server.rest.logs.log_models import LogLevel

ORIGIN = LogOrigin(Role.trainer, "first-trainer-x", 1, "trainer")
NO_FILTER = LineFilter()
LIVE = b"""2026-01-01T00:00:01.500000000Z 2026-01-01 00:00:01,499 INFO rlrun: began
2026-01-01T00:00:02Z Traceback (most recent call last):
2026-01-01T02:00:03.25+02:00 ERROR: broken
"""
KEPT = b"""Starting
2026-01-01 00:00:01,499 INFO rlrun: began
  of two lines
2026-01-01 00:00:02 ERROR rlrun: broken
Traceback
"""


def messages(data: bytes, wanted: LineFilter = NO_FILTER, *, timestamps: bool = False) -> list[str]:
    return [line.message for line in parse_lines(data, ORIGIN, wanted, timestamps=timestamps)]


def test_lines_of_pods_have_the_times_of_the_api_server() -> None:
    first, second, third = parse_lines(LIVE, ORIGIN, NO_FILTER, timestamps=True)
    assert first.message == "2026-01-01 00:00:01,499 INFO rlrun: began"
    assert (first.time, first.level) == ("2026-01-01T00:00:01.500000000Z", LogLevel.info)
    assert (second.level, third.level) == (None, LogLevel.error)
    assert third.time == "2026-01-01T02:00:03.25+02:00"
    assert third.nanoseconds - first.nanoseconds == 1_750_000_000
    shown = first.to_log_line()
    assert (shown.role, shown.pod, shown.attempt) == (Role.trainer, "first-trainer-x", 1)


def test_copies_have_the_times_of_the_lines_themselves() -> None:
    found = list(parse_lines(KEPT, ORIGIN, NO_FILTER, timestamps=False))
    assert [line.time for line in found] == [None, "2026-01-01T00:00:01.499Z", None, "2026-01-01T00:00:02Z", None]
    assert found[0].nanoseconds == 0
    assert found[1].nanoseconds == found[2].nanoseconds


def test_a_line_without_a_level_has_that_of_the_line_before_it_for_the_filter() -> None:
    assert messages(KEPT, LineFilter(level=LogLevel.warning)) == [
        "2026-01-01 00:00:02 ERROR rlrun: broken",
        "Traceback",
    ]
    assert len(messages(KEPT, LineFilter(level=LogLevel.info))) == 4


def test_a_line_before_the_time_gives_the_next_ones_their_level() -> None:
    """The API server has whole seconds: what it returns of the second is read, and is the context of the rest."""
    since = parse_since("2026-01-01T00:00:01.900Z", datetime(2026, 1, 1, tzinfo=UTC))
    assert since is not None
    assert time_text(since) == "2026-01-01T00:00:01Z"
    data = b"2026-01-01T00:00:01.899Z ERROR broken\n2026-01-01T00:00:01.901Z Traceback\n"
    assert messages(data, LineFilter(since=since, level=LogLevel.error), timestamps=True) == ["Traceback"]


def test_filters() -> None:
    assert messages(KEPT, LineFilter(search="began")) == ["2026-01-01 00:00:01,499 INFO rlrun: began"]
    assert messages(b"BEGAN\n", LineFilter(search="began")) == ["BEGAN"]
    assert messages(KEPT, LineFilter(pattern=compile_pattern("^S.*g$"))) == ["Starting"]
    since = parse_since("2026-01-01T00:00:02Z", datetime(2026, 1, 1, tzinfo=UTC))
    assert messages(KEPT, LineFilter(since=since)) == ["2026-01-01 00:00:02 ERROR rlrun: broken", "Traceback"]


@pytest.mark.parametrize("pattern", ["(", "(?=x)", r"(a)\1", "a{1000}{1000}", "[[:nope:]]"])
def test_what_is_not_re2_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"[a-z]{3}"):
        compile_pattern(pattern)


def test_levels() -> None:
    assert level_of("WARN here") is LogLevel.warning
    assert level_of("[rank0] FATAL: x") is LogLevel.critical
    assert level_of("INFO 01-01 00:00:00 [api_server.py:1] x") is LogLevel.info
    assert level_of("no INFORMATION") is None
    assert level_of("x" * 200 + " ERROR ") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("60", "2025-12-31T23:59:00Z"),
        ("2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00Z"),
        ("2026-01-01 00:00:00", "2026-01-01T00:00:00Z"),
    ],
)
def test_since_is_seconds_or_a_time(text: str, expected: str) -> None:
    found = parse_since(text, datetime(2026, 1, 1, tzinfo=UTC))
    assert found is not None
    assert time_text(found) == expected


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59Z"])
def test_each_time_that_is_accepted_can_be_asked_for(text: str) -> None:
    found = parse_since(text, datetime(2026, 1, 1, tzinfo=UTC))
    assert found is None or time_text(found)


def test_since_of_no_time() -> None:
    assert parse_since("2026-13-01T00:00:00Z", datetime(2026, 1, 1, tzinfo=UTC)) is None
    assert parse_since("999999999999", datetime(2026, 1, 1, tzinfo=UTC)) == 0


def test_hostile_lines_are_text() -> None:
    data = b"\x00\x1b[31mred\xff\xed\xa0\x80\r\n" + b"x" * (3 * log_lines.MAX_LINE) + b"\n9999-99-99T99:99:99Z\n\n"
    control, long, date = messages(data)
    assert control.startswith("\x00\x1b[31mred�")
    assert len(long) == log_lines.MAX_LINE
    assert date == "9999-99-99T99:99:99Z"
    assert messages(b"no-time and text\n\xff\xfe x\n", timestamps=True) == ["and text", "x"]


def test_only_the_last_lines_are_read() -> None:
    data = b"".join(b"%d\n" % number for number in range(10))
    found = parse_lines(data, ORIGIN, NO_FILTER, timestamps=False, max_lines=3)
    assert [line.message for line in found] == ["7", "8", "9"]


def line(nanoseconds: int, message: str, pod: str = "a") -> ParsedLine:
    return ParsedLine(nanoseconds, LogOrigin(Role.trainer, pod, 1, "trainer"), None, None, message)


def test_the_newest_lines_of_all_pods_are_merged_by_time() -> None:
    one, two = [line(1, "a"), line(3, "c"), line(3, "d")], [line(2, "b", "b"), line(4, "e", "b")]
    found, is_cut = merge_lines([one, two], 4)
    assert ([shown.message for shown in found], is_cut) == (["b", "c", "d", "e"], True)
    assert merge_lines([one, two], 5)[1] is False
    kept, has_more = newest(one, 2)
    assert ([shown.message for shown in kept], has_more) == (["c", "d"], True)
    assert newest(one, 3)[1] is False


def test_an_answer_has_a_limit_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "MAX_TEXT", 2 * log_lines.LINE_CHARACTERS + 5)
    found, is_cut = merge_lines([[line(1, "first"), line(2, "ab"), line(3, "cd")]], 10)
    assert ([shown.message for shown in found], is_cut) == (["ab", "cd"], True)
