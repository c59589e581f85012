"""Times at which the runs of a list are reconciled: thousands of runs that ended long ago must not delay those that
train."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from rlrun.kube.objects import Obj

from rlrun_operator.planning.plan.observation import RunKey
from rlrun_operator.planning.plan.stored_status import is_finished, long_ago, stored_phase
from rlrun_operator.planning.policies.ending.requeue import time_to_live

ACTIVE_PAUSE_SECONDS = 0.01
"""Pause between two reconciles of active runs, which have reconciles of their own besides. All at once, a thousand of
them take seconds, and an event that comes meanwhile waits for them."""
OLD_PAUSE_SECONDS = 0.1
"""Pause between two reconciles of runs that ended earlier. A reconcile costs three requests and two lists of S3."""


def is_active(run: Obj) -> bool:
    """Return whether an operator has reconciled the run, and it neither has ended nor is being deleted."""
    return stored_phase(run) is not None and not is_finished(run) and not run["metadata"].get("deletionTimestamp")


def resync_schedule(runs: Iterable[Obj], now: datetime) -> Iterator[tuple[RunKey, float]]:
    """Yield each run with the seconds until its reconcile.

    It is 0 for runs that are new, are being deleted or have ended lately. Active ones follow one after the other, and
    so do old ones, the newest first.
    """
    old: list[tuple[datetime, Obj]] = []
    active = 0
    for run in runs:
        ended = long_ago(run, now)
        if ended is not None:
            old.append((ended, run))
        elif is_active(run):
            yield _key(run), active * ACTIVE_PAUSE_SECONDS
            active += 1
        else:
            yield _key(run), 0.0
    old.sort(key=lambda found: found[0], reverse=True)
    for index, (ended, run) in enumerate(old):
        pause, ttl = index * OLD_PAUSE_SECONDS, (run.get("spec") or {}).get("ttlSecondsAfterFinished")
        left = time_to_live(ttl if isinstance(ttl, int) else None, ended, now)
        yield _key(run), pause if left is None else min(pause, max(0.0, left))


def _key(run: Obj) -> RunKey:
    return RunKey(run["metadata"]["namespace"], run["metadata"]["name"])
