"""Runs that are new to the operator's process, by what its watch and its lists have told."""

from typing import Any

import pytest
from rlrun.constants import FINALIZER
from rlrun_operator.cache.new_runs import GONE_SECONDS, NewRuns

NAME = ("team", "first")


def run(uid: str = "uid-1", **fields: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "team", "name": "first", "uid": uid}, **fields}


class Seconds:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


@pytest.fixture
def runs(clock: Seconds) -> NewRuns:
    return NewRuns(clock)


def test_a_created_run_is_new_for_one_look(runs: NewRuns) -> None:
    assert runs.see_event("ADDED", run())
    assert [runs.take(NAME, "uid-1") for _ in range(2)] == [True, False]
    assert not runs.see_event("ADDED", run())
    assert not runs.take(NAME, "uid-1")


@pytest.mark.parametrize("event", [None, "MODIFIED", "DELETED"])
def test_runs_of_other_events_are_not_new(runs: NewRuns, event: str | None) -> None:
    assert not runs.see_event(event, run())
    assert not runs.take(NAME, "uid-1")


def test_a_run_with_a_status_is_not_new(runs: NewRuns) -> None:
    assert not runs.see_event("ADDED", run(status={"phase": "Pending"}))
    assert not runs.take(NAME, "uid-1")


def test_a_run_that_is_restored_from_a_backup_is_not_new(runs: NewRuns) -> None:
    restored = run()
    restored["metadata"]["finalizers"] = [FINALIZER]
    assert not runs.see_event("ADDED", restored)
    assert not runs.take(NAME, "uid-1")


def test_a_change_before_the_first_look_leaves_the_run_new(runs: NewRuns) -> None:
    runs.see_event("ADDED", run())
    runs.see_event("MODIFIED", run())
    assert runs.take(NAME, "uid-1")


def test_a_look_that_finds_another_run_of_the_name_is_not_the_first_of_it(runs: NewRuns) -> None:
    runs.see_event("ADDED", run())
    assert not runs.take(NAME, "uid-2")


def test_a_run_that_was_looked_at_before_its_event_is_not_new(runs: NewRuns) -> None:
    assert not runs.take(NAME, "uid-1")
    assert not runs.see_event("ADDED", run())


def test_the_next_run_of_a_name_is_not_new_until_the_pods_of_the_last_one_have_surely_ended(
    runs: NewRuns, clock: Seconds
) -> None:
    runs.see_event("ADDED", run())
    runs.see_event("DELETED", run())
    assert not runs.take(NAME, "uid-1")
    runs.see_event("DELETED", run())
    clock.advance(GONE_SECONDS - 1)
    assert not runs.see_event("ADDED", run("uid-2"))
    runs.see_event("DELETED", run("uid-2"))
    clock.advance(GONE_SECONDS + 1)
    assert runs.see_event("ADDED", run("uid-3"))


def test_listed_runs_are_known(runs: NewRuns) -> None:
    runs.see_list([NAME])
    assert not runs.see_event("ADDED", run())


def test_a_list_ends_runs_whose_deletion_no_event_told(runs: NewRuns, clock: Seconds) -> None:
    runs.see_list([NAME])
    runs.see_list([])
    assert not runs.see_event("ADDED", run("uid-2")), "it has ended just now"
    runs.see_event("DELETED", run("uid-2"))
    clock.advance(GONE_SECONDS + 1)
    runs.see_list([])
    assert len(runs) == 0


def test_a_list_that_is_older_than_a_run_does_not_end_it(runs: NewRuns) -> None:
    runs.see_event("ADDED", run())
    runs.see_list([])
    assert runs.take(NAME, "uid-1")


def test_names_of_runs_that_exist_are_remembered(runs: NewRuns, clock: Seconds) -> None:
    runs.see_list([NAME])
    clock.advance(GONE_SECONDS + 1)
    runs.see_list([NAME])
    assert len(runs) == 1
