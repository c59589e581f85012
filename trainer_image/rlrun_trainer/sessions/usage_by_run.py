"""Usage of a shared pool's trainer by each run: trained tokens and device seconds since the process started.

Seconds in which the compute thread works for no run are idle, including the time in which the model is loaded. The
seconds of all runs and the idle seconds therefore sum to the age of the process.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection

from rlrun.protocol.pool_usage import PoolUsage, RunUsage, TokenKind
from rlrun.service.process_age import process_age

from rlrun_trainer.runtime.compute_thread import Compute

KEPT_SECONDS = 600.0
"""Seconds for which a run is listed after it left the `TrainerOrder`, long enough for several scrapes."""


class UsageByRun:
    """Usage counters for the runs of a pool."""

    def __init__(
        self, compute: Compute, age: Callable[[], float] = process_age, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`age` returns the seconds since the process started, and `clock` a time in seconds."""
        self._compute = compute
        self._age = age
        self._clock = clock
        self._trained = Counter[str]()
        """Number of trained tokens of each run that is listed."""
        self._left: dict[str, float] = {}
        """Time at which each former run left."""
        self._dropped_seconds = 0.0
        """Device seconds of former runs that are not listed any more."""

    def set_runs(self, uids: Collection[str]) -> None:
        """Replace the current list of runs. New runs are listed with counts of zero."""
        now = self._clock()
        for uid in self._trained.keys() - set(uids):
            self._left.setdefault(uid, now)
        for uid in uids:
            self._left.pop(uid, None)
            self._trained[uid] += 0

    def add_trained(self, uid: str, tokens: int) -> None:
        """Count the tokens of a step."""
        self._trained[uid] += tokens

    def current(self) -> PoolUsage:
        """Return the counters, after dropping runs that left more than KEPT_SECONDS ago."""
        now = self._clock()
        for uid in [uid for uid, left in self._left.items() if now - left > KEPT_SECONDS]:
            self._dropped_seconds += self._compute.forget(uid)
            del self._left[uid], self._trained[uid]
        runs = {
            uid: RunUsage(tokens={TokenKind.trained: count}, device_seconds=self._compute.seconds_of(uid))
            for uid, count in self._trained.items()
        }
        busy = self._dropped_seconds + sum(run.device_seconds for run in runs.values())
        return PoolUsage(idle_seconds=max(0.0, self._age() - busy), runs=runs)
