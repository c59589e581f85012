"""Filters for groups that give too little signal to train on.

Two settings of the spec are combined. Online difficulty filtering drops hopeless and solved groups, in which every
reward is exactly 0 or exactly 1. The difficulty filter drops by thresholds: groups whose rewards vary too little, and
groups that are too good or too bad.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FilterReason(StrEnum):
    """Reason why a group was dropped, used as the last part of the metric `filtered_rollouts/<reason>`."""

    all_zero = "all_zero"
    all_one = "all_one"
    low_variance = "low_variance"
    high_reward = "high_reward"
    low_reward = "low_reward"
    zero_advantage = "zero_advantage"
    """All advantages of the batch are 0. Also used for single rollouts left out because their advantage is 0."""
    truncated = "truncated"
    """All rollouts with an advantage are truncated and masked. Also used for single masked rollouts."""


@dataclass(frozen=True)
class GroupFilter:
    """Rules by which the run drops groups. A rule that is None drops nothing."""

    online: bool = False
    """Drop groups whose rewards are all 0 or all 1."""
    min_reward_variance: float | None = None
    """Minimum population variance. 0 drops groups whose rewards are all equal."""
    max_reward: float | None = None
    min_reward: float | None = None

    def filter_reason(self, rewards: Sequence[float]) -> FilterReason | None:
        """Return the reason to drop a group with these rewards (at least one), or None to keep it."""
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
        # The variance of equal rewards may exceed 0 by a rounding error.
        if max(rewards) == min(rewards):
            return True
        return math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards) < least
