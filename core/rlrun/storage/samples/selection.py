"""Filters for lists of rollouts."""

from collections.abc import Iterable
from dataclasses import dataclass

from rlrun.storage.samples.index import SampleGroup, SampleRow
from rlrun.storage.samples.record import SampleStatus

Pair = tuple[SampleGroup, SampleRow]
"""Rollout with its group."""


@dataclass(frozen=True)
class SampleFilter:
    """Conditions for the rollouts in a list. A condition that is None matches every rollout."""

    environment: str | None = None
    status: SampleStatus | None = None
    min_reward: float | None = None
    """Minimum reward. A rollout without a reward satisfies no condition on the reward."""
    max_reward: float | None = None
    group: str | None = None

    def accepts(self, group: SampleGroup, row: SampleRow) -> bool:
        """Return whether the rollout satisfies all conditions."""
        if self.environment is not None and group.environment != self.environment:
            return False
        if self.group is not None and group.group != self.group:
            return False
        if self.status is not None and row.status is not self.status:
            return False
        if self.min_reward is None and self.max_reward is None:
            return True
        if row.reward is None:
            return False
        above = self.min_reward is None or row.reward >= self.min_reward
        return above and (self.max_reward is None or row.reward <= self.max_reward)


def select(pairs: Iterable[Pair], wanted: SampleFilter) -> list[Pair]:
    """Return the rollouts that satisfy the filter, in their order."""
    return [pair for pair in pairs if wanted.accepts(*pair)]
