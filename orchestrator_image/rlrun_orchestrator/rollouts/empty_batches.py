"""Monitors batches without a usable group: warns after each, pauses after errors, and fails the run after too many.

All counts are of finished groups since the last usable one. A run fails in two cases:

    errors    ten batches of groups, at least half of which failed. The environment is broken.
    filters   1,000 groups that were filtered or have no rollout to train on, regardless of the batch size. On a hard
              task few groups are usable, and small batches are often empty: if 2% of the groups are usable, ten batches
              of four groups are empty in 45 of 100 cases. 1,000 such groups in a row then happen once in 30 billion
              groups.
"""

import logging

from rlrun.constants import ExitCode, Reason
from rlrun.protocol.problem import Problem
from rlrun.service.backoff import Backoff
from rlrun.service.errors import FatalError

from rlrun_orchestrator.data.group_filter import FilterReason
from rlrun_orchestrator.data.groups import Group, GroupState

log = logging.getLogger(__name__)

EMPTY_BATCHES = 10
"""Number of consecutive empty batches after which the run fails, if at least half of their groups failed."""


class EmptyBatchMonitor:
    """Tracks consecutive unusable groups, and decides when to pause and when to fail the run."""

    def __init__(self, groups_per_batch: int, first_pause: float, most_filtered_groups: int) -> None:
        """`first_pause` is the pause in seconds after the first batch that is empty because of errors. Each later pause
        is twice as long as this one.
        """
        self.problem: Problem | None = None
        """Reason why the newest batches are empty, or None once a group is usable."""
        self.failure: FatalError | None = None
        self.last_error: Problem | None = None
        self._size = groups_per_batch
        self._pause = Backoff(first_pause, 2 * first_pause)
        self._most_filtered_groups = most_filtered_groups
        self._filtered = 0
        self._errors = 0
        self._batch_errors = 0
        """Number of errors since the last empty batch."""
        self._filter_reasons: set[FilterReason] = set()

    def may_dispatch(self, now: float) -> bool:
        """Return True if groups may be started."""
        return self._pause.open(now)

    def record_group(self, group: Group, now: float) -> None:
        """Record the outcome of a group that an environment finished."""
        if self.failure is not None:
            return
        if group.state is GroupState.errored:
            self._errors += 1
            self._batch_errors += 1
        elif group.state is GroupState.filtered or not group.trained_rollouts:
            self._filtered += 1
            self._filter_reasons.add(group.untrained_reason)
        else:
            self._filtered = self._errors = self._batch_errors = 0
            self._filter_reasons.clear()
            self._pause.record_success()
            self.problem = None
            return
        unusable = self._filtered + self._errors
        broken = unusable >= EMPTY_BATCHES * self._size and 2 * self._errors >= unusable
        if broken or self._filtered >= self._most_filtered_groups:
            self.problem = self._describe()
            self.failure = FatalError(self.problem, ExitCode.CONFIGURATION)
        elif unusable % self._size == 0:
            self.problem = self._describe()
            batch_errors, self._batch_errors = self._batch_errors, 0
            if 2 * batch_errors >= self._size:
                self._pause.record_failure(now)
                log.warning("%s. Retrying in %.0f s.", self.problem.message.rstrip("."), self._pause.pause)

    def _describe(self) -> Problem:
        unusable = self._filtered + self._errors
        error = f"{self.last_error.reason}: {self.last_error.message}" if self.last_error is not None else ""
        if 2 * self._errors >= unusable:
            cause = f"the last error was {error}" if error else "they have too few valid rollouts"
        else:
            cause = self._filter_cause()
            if self._errors and error:
                cause += f". Failed groups: {self._errors}; the last error was {error}"
        batches = unusable // self._size
        counted = f"{batches} batch" if batches == 1 else f"{batches} batches"
        message = f"none of the last {unusable} groups ({counted}) is usable: {cause}"
        return Problem(reason=Reason.EMPTY_BATCHES, message=message[:1000])

    def _filter_cause(self) -> str:
        groups = "most groups" if self._errors else "every group"
        if self._filter_reasons == {FilterReason.zero_advantage}:
            return (
                f"within {groups}, all rewards are equal (zero_advantage), so there is nothing to learn from; read "
                "some rollouts, and use examples of a different difficulty or rewards for partial success"
            )
        if self._filter_reasons == {FilterReason.truncated}:
            return (
                f"the rollouts of {groups} are truncated, and algorithm.maskTruncated leaves them out; raise "
                "sampling.maxTokens, or unset maskTruncated"
            )
        verb = "were" if self._errors else "was"
        return (
            f"{groups} {verb} filtered ({', '.join(sorted(self._filter_reasons))}), because their rewards give too "
            "little signal; change the environment's difficulty, or buffer.onlineDifficultyFiltering and "
            "difficultyFilter"
        )
