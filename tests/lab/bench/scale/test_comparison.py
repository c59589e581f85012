"""Comparison of results with recorded ranges: planted regressions are found, and named."""

from typing import Any

import pytest

from bench.scale.comparison import compare


def entry(
    name: str, ratio: float | None, low: float, high: float, better: str = "lower", **more: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "ratio": ratio,
        "unit": "s",
        "aim": None,
        "notes": ["it broke"],
        "machine": {"cores": 2},
        "command": "c",
        "commit": "d",
        "cores_busy_before": [0.01],
        "valid": True,
        "repetitions": {"count": 3, "min": low, "median": ratio, "max": high},
        "figures": {"runs": 100, "better": better},
        **more,
    }


RECORDED = entry("start", 10, 8, 12)


@pytest.mark.parametrize(
    ("number", "outcome"), [(5, "ok"), (14.3, "ok"), (14.5, "worse"), (1000, "worse"), (float("nan"), "worse")]
)
def test_a_number_may_be_larger_than_the_range_by_a_fifth(number: float, outcome: str) -> None:
    assert [v.outcome for v in compare([RECORDED], [entry("start", number, 0, 0)])] == [outcome]


@pytest.mark.parametrize(("number", "outcome"), [(50, "ok"), (6.5, "ok"), (6.3, "worse"), (0, "worse")])
def test_of_a_rate_the_lower_end_counts(number: float, outcome: str) -> None:
    recorded = entry("rate", 10, 8, 12, "higher")
    assert [v.outcome for v in compare([recorded], [entry("rate", number, 0, 0, "higher")])] == [outcome]


def test_where_nothing_was_written_one_write_is_worse() -> None:
    recorded = entry("writes", 0, 0, 0)
    assert compare([recorded], [entry("writes", 0, 0, 0)])[0].outcome == "ok"
    assert compare([recorded], [entry("writes", 1, 1, 1)])[0].outcome == "worse"


@pytest.mark.parametrize(
    "change", [{"figures": {"runs": 20, "better": "lower"}}, {"machine": {"cores": 16}}, {"unit": "x"}]
)
def test_rows_of_other_sizes_are_not_compared(change: dict[str, Any]) -> None:
    found = compare([RECORDED], [{**entry("start", 1000, 0, 0), **change}])[0]
    assert (found.outcome, found.fails) == ("not compared", False)
    assert found.text.startswith("other sizes")


@pytest.mark.parametrize(
    ("loop", "unit", "outcome"),
    [
        (0.06, "s", "worse"),
        (0.12, "s", "not compared"),
        (0.03, "s", "not compared"),
        (0.12, "requests/s", "worse"),
        (None, "s", "worse"),
    ],
)
def test_times_of_cores_of_another_speed_are_not_compared(loop: float | None, unit: str, outcome: str) -> None:
    recorded = {**RECORDED, "unit": unit, "machine": {"cores": 2, "loop_seconds": 0.06}}
    where = {"cores": 2} if loop is None else {"cores": 2, "loop_seconds": loop}
    found = compare([recorded], [{**entry("start", 1000, 0, 0), "unit": unit, "machine": where}])[0]
    assert found.outcome == outcome
    assert ("60 ms and" in found.text) is (outcome == "not compared")


def test_a_row_that_could_not_be_measured_fails_with_its_cause() -> None:
    found = compare([RECORDED], [entry("start", None, 0, 0)])[0]
    assert found.fails
    assert "it broke" in found.text


def test_a_measurement_on_a_busy_machine_fails() -> None:
    found = compare([RECORDED], [entry("start", 10, 10, 10, cores_busy_before=[1.5], valid=False)])[0]
    assert (found.outcome, found.fails) == ("invalid", True)


def test_a_range_of_a_busy_machine_is_no_range() -> None:
    found = compare(
        [entry("start", 10, 8, 1000, cores_busy_before=[1.5], valid=False)], [entry("start", 500, 500, 500)]
    )[0]
    assert found.outcome == "not compared"


def test_rows_of_one_file_only_are_named() -> None:
    found = compare([RECORDED], [entry("new", 1, 1, 1)])
    assert [(v.name, v.outcome) for v in found] == [("start", "not compared"), ("new", "not compared")]
