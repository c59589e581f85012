"""Waits between restarts of a run."""

from datetime import timedelta

from rlrun.api.run_status import RLRunStatus
from rlrun_operator.planning.policies.restart_backoff import next_restart, remaining_wait

from tests.support.clocks import START


def test_restart_does_not_wait_after_the_clock_was_set_back() -> None:
    wait, due = next_restart(RLRunStatus(attempt_start_time=START), START)
    status = RLRunStatus(restart_backoff_seconds=wait, next_restart_time=due)
    assert remaining_wait(status, START) == 10
    assert remaining_wait(status, START + timedelta(seconds=4)) == 6
    assert remaining_wait(status, START - timedelta(hours=1)) == 0
