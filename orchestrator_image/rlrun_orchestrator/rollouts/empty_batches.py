"""Batches without one usable group: told at once, tried again more and more slowly, and the end after five in a row."""

import logging

from rlrun.constants import ExitCode, Reason
from rlrun.protocol.problem import Problem
from rlrun.service.backoff import Backoff
from rlrun.service.errors import FatalError

from rlrun_orchestrator.data.group_filter import FilterReason
from rlrun_orchestrator.data.groups import GroupOutcome

log = logging.getLogger(__name__)

EMPTY_BATCHES = 5
"""In a row, before the run fails."""


class EmptyBatchMonitor:
    """What a run does that learns nothing."""

    def __init__(self, groups_per_batch: int, first_pause: float) -> None:
        """`first_pause`: seconds after the first empty batch of errors; doubles, up to ten times this."""
        self.problem: Problem | None = None
        """Why nothing comes of the groups, while that is so."""
        self.failure: FatalError | None = None
        self.last_error: Problem | None = None
        self._size = groups_per_batch
        self._pause = Backoff(first_pause, 10 * first_pause)
        self._empty_batches = 0
        self._barren = 0
        """Groups that environments answered since the last usable one, in this batch."""
        self._errors = 0
        self._causes: set[FilterReason] = set()

    def may_dispatch(self, now: float) -> bool:
        """Whether groups may be started."""
        return self._pause.open(now)

    def record_outcome(self, verdict: GroupOutcome, cause: FilterReason | None, now: float) -> None:
        """An environment has answered a group."""
        if self.failure is not None:
            return
        if verdict is GroupOutcome.usable:
            self._barren = self._errors = self._empty_batches = 0
            self._causes.clear()
            self._pause.succeeded()
            self.problem = None
            return
        self._barren += 1
        self._errors += verdict is GroupOutcome.errored
        if cause is not None:
            self._causes.add(cause)
        if self._barren < self._size:
            return
        self._empty_batches += 1
        errors, self._barren, self._errors = self._errors, 0, 0
        self.problem = self._in_words()
        if self._empty_batches >= EMPTY_BATCHES:
            self.failure = FatalError(self.problem, ExitCode.CONFIGURATION)
        elif 2 * errors >= self._size:
            self._pause.failed(now)
            log.warning("%s; next try in %.0f s", self.problem.message, self._pause.pause)

    def _in_words(self) -> Problem:
        cause = (
            f"the last error was {self.last_error.reason}: {self.last_error.message}"
            if self.last_error
            else f"every group was filtered ({', '.join(sorted(self._causes))}): its rewards teach too little; change "
            "the environment's difficulty, or buffer.onlineDifficultyFiltering and difficultyFilter"
        )
        batches = "batch" if self._empty_batches == 1 else "batches in a row"
        message = f"{self._empty_batches} {batches} without one usable group: {cause}"
        return Problem(reason=Reason.EMPTY_BATCHES, message=message[:1000])
