"""Advantages of a group's rollouts."""

import math
from collections.abc import Sequence

from rlrun.api.run_sections.training import Advantage, LengthPenalty

ROUNDING = 1e-12
"""Maximum relative difference between a reward and a mean that counts as a rounding error."""
EPSILON = 1e-6
"""Number added to the standard deviation, as in verl (`compute_grpo_outcome_advantage`)."""


def group_advantages(rewards: Sequence[float], how: Advantage = Advantage.mean) -> list[float]:
    """Return the advantage of each rollout. It is exactly 0 for a reward that differs from the mean only by a rounding
    error, except with `Advantage.none`. Raises ValueError for a reward that is not finite.
    """
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError(f"rewards must be finite numbers, not {list(rewards)}")
    if how is Advantage.none or not rewards:
        return list(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centered = [0.0 if math.isclose(reward, mean, rel_tol=ROUNDING) else reward - mean for reward in rewards]
    if how is Advantage.mean:
        return centered
    if how is Advantage.std:
        scale = math.sqrt(math.fsum(value**2 for value in centered) / max(1, len(rewards) - 1)) + EPSILON
    else:
        # A mean of 0 carries no signal, and neither does one that is the rounding error of a sum.
        scale = mean if mean > ROUNDING * max(map(abs, rewards)) else math.inf
    return [value / scale for value in centered]


def penalized_rewards(
    rewards: Sequence[float], lengths: Sequence[tuple[int, int, int]], how: LengthPenalty
) -> list[float]:
    """Subtract the length penalties from the rewards of a group, as `GRPOAlgorithm` of prime-rl 0.8 does. `lengths` has
    the output tokens, input tokens and turns of each rollout.
    """
    weights = (how.output_tokens_weight, how.input_tokens_weight, how.turns_weight)
    longest = [max(1, *column) for column in zip(*lengths, strict=True)]
    mean = math.fsum(rewards) / len(rewards)
    return [
        reward - mean * math.fsum(w * length / most for w, length, most in zip(weights, own, longest, strict=True))
        for reward, own in zip(rewards, lengths, strict=True)
    ]
