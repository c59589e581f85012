"""How much better than its siblings a rollout was, and whether its group is worth training on.

The advantage is the reward minus the mean reward of the group, without division by the standard deviation: that
division would weigh easy and hard examples up (Liu et al. 2025, "Understanding R1-Zero-Like Training").
"""

import math
from collections.abc import Sequence

from rlrun_orchestrator.scheduler import Verdict


def group_advantages(rewards: Sequence[float]) -> list[float]:
    """reward - mean(rewards), one per rollout. Raises ValueError for a reward that is no finite number."""
    if not rewards:
        return []
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError(f"rewards must be finite numbers, not {list(rewards)}")
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def judge(rewards: Sequence[float], *, rollouts_per_example: int, online_filtering: bool) -> Verdict:
    """What a group with these rewards of its good rollouts is good for.

    One rollout alone has nothing to be compared with, so a group needs two (unless the run asks for groups of one).
    With online filtering a mean of exactly 0 or 1 says that the example is hopeless or solved; without it a group of
    equal rewards is trained with advantage zero, which changes nothing but counts in the loss' denominator.
    """
    if len(rewards) < min(2, rollouts_per_example):
        return Verdict.errored
    if online_filtering and math.fsum(rewards) / len(rewards) in (0.0, 1.0):
        return Verdict.filtered
    return Verdict.usable
