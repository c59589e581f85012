"""Metrics of an evaluation: avg@k, pass@k, and validation rewards. Pure.

A failed rollout has no reward: it is excluded from every mean and counted in `error`. An example counts for pass@k only
with k valid rollouts. The rollouts of all agents of an environment count alike.
"""

import math
from collections.abc import Sequence

from rlrun.protocol.environment import RolloutResult

SUCCESS = 1.0
"""A rollout passes with at least this reward: the maximum of rewards between 0 and 1."""


def pass_at_k(rollouts: int, successes: int, k: int) -> float:
    """Probability that at least one of k rollouts, drawn from `rollouts` without replacement, passes.

    1 - C(n - c, k) / C(n, k), the unbiased estimator of Chen et al. 2021, "Evaluating Large Language Models Trained on
    Code", equation 1. Raises ValueError unless 0 <= successes <= rollouts and 1 <= k <= rollouts.
    """
    if not (0 <= successes <= rollouts and 1 <= k <= rollouts):
        raise ValueError(f"pass@{k} of {successes} successes in {rollouts} rollouts is not defined")
    return 1.0 - math.comb(rollouts - successes, k) / math.comb(rollouts, k)


def k_values(rollouts: int) -> list[int]:
    """Return 1, 2, 4, ... and `rollouts` itself."""
    powers = [2**i for i in range(rollouts.bit_length())]
    return sorted({k for k in powers if k <= rollouts} | {rollouts})


def evaluation_values(environment: str, rollouts: int, results: Sequence[Sequence[RolloutResult]]) -> dict[str, float]:
    """Return `eval/<environment>/...`. `results` has one entry per example, an empty one if it failed."""
    groups = valid_rewards(results)
    base = f"eval/{environment}"
    values = {f"{base}/error": _error_share(results, rollouts), f"{base}/examples": float(len(results))}
    rewards = [reward for group in groups for reward in group]
    if not rewards:
        return values
    values[f"{base}/avg@{rollouts}"] = _mean(rewards)
    values[f"{base}/is_truncated"] = _mean([float(r.is_truncated) for group in results for r in group if is_valid(r)])
    for k in k_values(rollouts):
        enough = [group for group in groups if len(group) >= k]
        if enough:
            chances = [pass_at_k(len(group), sum(r >= SUCCESS for r in group), k) for group in enough]
            values[f"{base}/pass@{k}"] = _mean(chances)
    return values


def validation_values(environment: str, rollouts: int, results: Sequence[Sequence[RolloutResult]]) -> dict[str, float]:
    """Return `val_reward/<environment>/...`."""
    groups = valid_rewards(results)
    base = f"val_reward/{environment}"
    values = {f"{base}/error": _error_share(results, rollouts), f"{base}/examples": float(len(results))}
    rewards = [reward for group in groups for reward in group]
    return values | ({f"{base}/mean": _mean(rewards)} if rewards else {})


def validation_total(results: Sequence[Sequence[RolloutResult]]) -> dict[str, float]:
    """Return `val_reward/mean` over the rollouts of all environments."""
    rewards = [reward for group in valid_rewards(results) for reward in group]
    return {"val_reward/mean": _mean(rewards)} if rewards else {}


def valid_rewards(results: Sequence[Sequence[RolloutResult]]) -> list[list[float]]:
    """Return the rewards of the valid rollouts, per example."""
    return [[rollout.reward for rollout in group if is_valid(rollout)] for group in results]


def is_valid(rollout: RolloutResult) -> bool:
    """Return whether the rollout did not fail and has a finite reward."""
    return rollout.error is None and math.isfinite(rollout.reward)


def _error_share(results: Sequence[Sequence[RolloutResult]], rollouts: int) -> float:
    """Return the share of failed rollouts of those requested, or reported if episodes have several."""
    wanted = sum(max(rollouts, len(group)) for group in results)
    return 1.0 - sum(map(len, valid_rewards(results))) / wanted if wanted else 0.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
