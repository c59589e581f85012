from datetime import UTC, datetime, timedelta

from rlrun.api.base.phases import Phase
from rlrun.api.run_status import RLRunStatus
from rlrun.kube.conditions import (
    find_condition,
    parse_time,
    seconds,
    shorten,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONDITION = {"type": "Running", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}


def test_a_condition_is_found_by_its_type() -> None:
    status = RLRunStatus.parse({"conditions": [CONDITION]})
    found = find_condition(status, "Running")
    assert found is not None
    assert found.reason == "R"
    assert find_condition(status, "Failed") is None


def test_a_long_message_loses_its_end() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("abcd", 3) == "ab…"


def test_seconds_are_never_negative() -> None:
    assert seconds(NOW, NOW + timedelta(seconds=5)) == 5
    assert seconds(NOW + timedelta(seconds=5), NOW) == 0
    assert seconds(None, NOW) == 0


def test_a_timestamp_without_text_is_none() -> None:
    assert parse_time("2026-01-01T00:00:00Z") == NOW
    assert parse_time(None) is None


def test_what_does_not_fit_is_left_out_of_a_status() -> None:
    assert RLRunStatus.parse({"phase": "Running"}).phase is Phase.running
    wrong = {"type": "Running", "reason": ""}
    status = {"phase": "Running", "attempt": 0, "conditions": [wrong, CONDITION, {**wrong}]}
    assert RLRunStatus.parse(status) == RLRunStatus.parse({"phase": "Running", "conditions": [CONDITION]})
    assert RLRunStatus.parse({"phase": "Flying"}) == RLRunStatus()
    assert RLRunStatus.parse(None) == RLRunStatus()


def test_long_messages_are_cut() -> None:
    assert len(shorten("x" * 5000)) == 2000
