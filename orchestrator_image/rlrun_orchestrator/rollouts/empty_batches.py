"""Monitor for batches without a usable group: warn at once, retry with growing pauses, fail after five in a row."""

import logging

from rlrun.constants import ExitCode, Reason
from rlrun.protocol.problem import Problem
from rlrun.service.backoff import Backoff
from rlrun.service.errors import FatalError

from rlrun_orchestrator.data.group_filter import FilterReason
from rlrun_orchestrator.data.groups import GroupOutcome

log = logging.getLogger(__name__)

EMPTY_BATCHES = 5
"""Consecutive empty batches after which the run fails."""


class EmptyBatchMonitor:
    """Tracks consecutive empty batches and decides when to pause or fail."""

    def __init__(self, groups_per_batch: int, first_pause: float) -> None:
        """`first_pause`: seconds after the first empty batch of errors. It doubles, up to ten times this value."""
        self.problem: Problem | None = None
        """Reason for which the newest batches are empty. None once a group is usable."""
        self.failure: FatalError | None = None
        self.last_error: Problem | None = None
        self._size = groups_per_batch
        self._pause = Backoff(first_pause, 10 * first_pause)
        self._empty_batches = 0
        self._unusable = 0
        """Finished groups since the last usable one, in this batch."""
        self._errors = 0
        self._filter_reasons: set[FilterReason] = set()

    def may_dispatch(self, now: float) -> bool:
        """Return whether groups may be started."""
        return self._pause.open(now)

    def record_outcome(self, outcome: GroupOutcome, filter_reason: FilterReason | None, now: float) -> None:
        """Record the outcome of a group that an environment answered."""
        if self.failure is not None:
            return
        if outcome is GroupOutcome.usable:
            self._unusable = self._errors = self._empty_batches = 0
            self._filter_reasons.clear()
            self._pause.record_success()
            self.problem = None
            return
        self._unusable += 1
        self._errors += outcome is GroupOutcome.errored
        if filter_reason is not None:
            self._filter_reasons.add(filter_reason)
        if self._unusable < self._size:
            return
        self._empty_batches += 1
        errors, self._unusable, self._errors = self._errors, 0, 0
        self.problem = self._describe()
        if self._empty_batches >= EMPTY_BATCHES:
            self.failure = FatalError(self.problem, ExitCode.CONFIGURATION)
        elif 2 * errors >= self._size:
            self._pause.record_failure(now)
            log.warning("%s. Retrying in %.0f s.", self.problem.message, self._pause.pause)

    def _describe(self) -> Problem:
        cause = (
            f"the last error was {self.last_error.reason}: {self.last_error.message}"
            if self.last_error
            else f"every group was filtered ({', '.join(sorted(self._filter_reasons))}), because its rewards give "
            "too little signal; change the environment's difficulty, or buffer.onlineDifficultyFiltering and "
            "difficultyFilter"
        )
        batches = "batch" if self._empty_batches == 1 else "batches in a row"
        message = f"{self._empty_batches} {batches} without a usable group: {cause}"
        return Problem(reason=Reason.EMPTY_BATCHES, message=message[:1000])
