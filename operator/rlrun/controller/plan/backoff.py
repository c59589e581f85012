"""How long a restart of the whole run waits: the more of them in a row, the longer.

All of it is computed from the status, so no restart of the operator makes a wait shorter, or begins one anew.
"""

from datetime import datetime, timedelta

from rlrun.controller.plan.draft import Draft
from rlrun.kube.conditions import seconds

FIRST_SECONDS = 10
LONGEST_SECONDS = 300
FORGOTTEN_SECONDS = 600
"""An attempt that ran this long was well: what ends it is not the old trouble."""


def next_backoff(newest: int, ran: float) -> int:
    """Seconds to wait; `newest` is the wait before the attempt that ends now (0: none), which ran for `ran` seconds."""
    if newest <= 0 or ran >= FORGOTTEN_SECONDS:
        return FIRST_SECONDS
    return min(2 * newest, LONGEST_SECONDS)


def wait_before_restart(draft: Draft) -> datetime:
    """Notes in the status how long the next attempt waits, and says when it begins."""
    status = draft.status
    ran = seconds(draft.since("Running"), draft.now) if draft.holds("Running") else 0.0
    status.restart_backoff_seconds = next_backoff(status.restart_backoff_seconds, ran)
    status.next_restart_time = draft.now + timedelta(seconds=status.restart_backoff_seconds)
    return status.next_restart_time


def still_waits(draft: Draft) -> float:
    """Seconds until the next attempt may begin; 0 when none waits, and where the clock was set back since."""
    due, wait = draft.status.next_restart_time, draft.status.restart_backoff_seconds
    left = 0.0 if due is None else (due - draft.now).total_seconds()
    return left if 0.0 < left <= wait else 0.0
