"""Schedule of a churn, and its rows."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bench.scale.results.churn import ChurnRepetition, results_of, schedule
from tests.lab.bench.scale.results.samples import BUSY

FOUND = ChurnRepetition(
    runs=150,
    rate=0.5,
    late_seconds=0.1,
    running_delays=[3.0, 4.0],
    stopped_delays=[0.5],
    left={"pods": 0, "jobs": 0},
    first_mib=180,
    last_mib=200,
    used=BUSY,
)


@given(st.floats(0.1, 5), st.floats(10, 300), st.floats(1, 60), st.floats(1, 60))
def test_every_run_is_created_stopped_and_deleted_in_this_order(
    rate: float, seconds: float, stop: float, more: float
) -> None:
    actions = schedule(rate, seconds, stop, stop + more)
    assert [a.at for a in actions] == sorted(a.at for a in actions)
    assert Counter(a.verb for a in actions) == Counter(dict.fromkeys(("create", "stop", "delete"), int(rate * seconds)))
    for index in range(int(rate * seconds)):
        assert [a.verb for a in actions if a.index == index] == ["create", "stop", "delete"]


def test_runs_are_stopped_and_deleted_at_their_ages() -> None:
    ends = {(a.verb, a.index): a.at for a in schedule(1, 3, 5, 8)}
    assert [ends["stop", index] for index in range(3)] == [5, 6, 7]
    assert [ends["delete", index] for index in range(3)] == [8, 9, 10]


def test_the_rate_is_steady() -> None:
    created = [a.at for a in schedule(0.5, 20, 5, 8) if a.verb == "create"]
    assert created == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]


def test_one_child_that_is_left_misses_the_aim_and_is_named() -> None:
    clean, dirty = (results_of([found])[0] for found in (FOUND, replace(FOUND, left={"pods": 0, "jobs": 1})))
    assert clean.aim is not None
    assert (clean.ratio, clean.aim.met_by(clean.ratio)) == (0, True)
    assert (dirty.ratio, clean.aim.met_by(dirty.ratio)) == (1, False)
    assert dirty.notes[0].startswith("1 jobs;")


def test_memory_before_and_after_are_stated() -> None:
    rows = {row.name: row for row in results_of([FOUND])}
    assert rows["churn memory"].ratio == 200
    assert rows["churn memory"].notes[0].startswith("180 MiB before")
    assert rows["churn creation to Running"].ratio == 4.0
    assert rows["churn stop to Stopped"].ratio == 0.5
