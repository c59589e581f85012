"""How long a restart of the whole run waits: the more of them in a row, the longer.

All of it is computed from the status, so no restart of the operator makes a wait shorter, or begins one anew.
"""

from datetime import datetime, timedelta

from rlrun.api.run_status import RLRunStatus
from rlrun.kube.conditions import seconds

from rlrun_operator.planning.plan.status_builder import is_true, transition_time

FIRST_SECONDS = 10
LONGEST_SECONDS = 300
FORGOTTEN_SECONDS = 600
"""An attempt that ran this long was well: what ends it is not the old trouble."""


def next_backoff(newest: int, ran: float) -> int:
    """Seconds to wait; `newest` is the wait before the attempt that ends now (0: none), which ran for `ran` seconds."""
    if newest <= 0 or ran >= FORGOTTEN_SECONDS:
        return FIRST_SECONDS
    return min(2 * newest, LONGEST_SECONDS)


def next_restart(status: RLRunStatus, now: datetime) -> tuple[int, datetime]:
    """Return the seconds that the next attempt waits, and the time at which it begins."""
    ran = seconds(transition_time(status, "Running"), now) if is_true(status, "Running") else 0.0
    wait = next_backoff(status.restart_backoff_seconds, ran)
    return wait, now + timedelta(seconds=wait)


def remaining_wait(status: RLRunStatus, now: datetime) -> float:
    """Return the seconds until the next attempt may begin; 0 when none waits, or the clock was set back since."""
    due, wait = status.next_restart_time, status.restart_backoff_seconds
    left = 0.0 if due is None else (due - now).total_seconds()
    return left if 0.0 < left <= wait else 0.0
