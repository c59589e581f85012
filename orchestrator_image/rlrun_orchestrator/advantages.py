"""How much better than its siblings a rollout was.

The advantage is the reward minus the mean reward of the group, without division by the standard deviation: that
division would weigh easy and hard examples up (Liu et al. 2025, "Understanding R1-Zero-Like Training").
"""

import math
from collections.abc import Sequence


def group_advantages(rewards: Sequence[float]) -> list[float]:
    """reward - mean(rewards), one per rollout. Raises ValueError for a reward that is no finite number."""
    if not rewards:
        return []
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError(f"rewards must be finite numbers, not {list(rewards)}")
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]
