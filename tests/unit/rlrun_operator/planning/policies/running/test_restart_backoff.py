"""Waits between restarts of a run."""

from datetime import timedelta

import pytest
from rlrun.api.run_status import RLRunStatus
from rlrun_operator.planning.plan.actions import ConditionChange
from rlrun_operator.planning.policies.running.restart_backoff import next_backoff, next_restart, remaining_wait

from tests.support.clocks import START
from tests.support.run_states import at, started


@pytest.mark.parametrize(
    ("last_wait", "ran", "expected"),
    [(0, 0, 10), (10, 0, 20), (20, 599, 40), (20, 600, 10), (149, 0, 298), (160, 0, 300), (300, 0, 300)],
)
def test_waits_double_up_to_a_limit_and_start_again_after_a_stable_attempt(
    last_wait: int, ran: float, expected: int
) -> None:
    assert next_backoff(last_wait, ran) == expected


@pytest.mark.parametrize(("running", "after", "expected"), [(True, 599, 40), (True, 600, 10), (False, 3600, 40)])
def test_only_time_in_which_the_run_was_running_makes_an_attempt_stable(
    running: bool, after: float, expected: int
) -> None:
    status = started(ConditionChange("Running", running, "m")).model_copy(update={"restart_backoff_seconds": 20})
    assert next_restart(status, at(after)) == (expected, at(after + expected))


def test_restart_does_not_wait_after_the_clock_was_set_back() -> None:
    wait, due = next_restart(RLRunStatus(attempt_start_time=START), START)
    status = RLRunStatus(restart_backoff_seconds=wait, next_restart_time=due)
    assert remaining_wait(status, START) == 10
    assert remaining_wait(status, START + timedelta(seconds=4)) == 6
    assert remaining_wait(status, START - timedelta(hours=1)) == 0


def test_nothing_waits_without_a_next_attempt_or_after_its_time() -> None:
    assert remaining_wait(RLRunStatus(restart_backoff_seconds=10), START) == 0
    due = RLRunStatus(restart_backoff_seconds=10, next_restart_time=START)
    assert remaining_wait(due, START) == 0
    assert remaining_wait(due, START + timedelta(seconds=0.5)) == 0
    assert remaining_wait(due, START - timedelta(seconds=10)) == 10
