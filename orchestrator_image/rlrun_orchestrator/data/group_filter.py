"""Filters for groups that give too little signal to train on.

Two settings of the spec meet here. Online difficulty filtering drops groups that are hopeless or solved: every reward
is exactly 0, or every reward is exactly 1. The difficulty filter drops by thresholds: rewards that vary too little,
groups that are too good or too bad.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FilterReason(StrEnum):
    """Reason for which a group was dropped: the last part of the metric `filtered_rollouts/<reason>`."""

    all_zero = "all_zero"
    all_one = "all_one"
    low_variance = "low_variance"
    high_reward = "high_reward"
    low_reward = "low_reward"
    zero_advantage = "zero_advantage"
    """All advantages of its batch are 0. Also of single rollouts of a batch that are left out for theirs."""


@dataclass(frozen=True)
class GroupFilter:
    """Rules of the run. A rule that is None drops nothing."""

    online: bool = False
    """Drops groups whose rewards are all 0, or all 1."""
    min_reward_variance: float | None = None
    """Population variance. 0 drops groups whose rewards are all equal."""
    max_reward: float | None = None
    min_reward: float | None = None

    def filter_reason(self, rewards: Sequence[float]) -> FilterReason | None:
        """Return the reason to drop a group with these rewards (at least one), None to keep it."""
        if self.online and all(reward == 0.0 for reward in rewards):
            return FilterReason.all_zero
        if self.online and all(reward == 1.0 for reward in rewards):
            return FilterReason.all_one
        mean = math.fsum(rewards) / len(rewards)
        if self.min_reward_variance is not None and self._too_equal(rewards, mean, self.min_reward_variance):
            return FilterReason.low_variance
        if self.max_reward is not None and mean > self.max_reward:
            return FilterReason.high_reward
        if self.min_reward is not None and mean < self.min_reward:
            return FilterReason.low_reward
        return None

    @staticmethod
    def _too_equal(rewards: Sequence[float], mean: float, least: float) -> bool:
        # The variance of equal rewards may be a rounding error above 0.
        if max(rewards) == min(rewards):
            return True
        return math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards) < least
