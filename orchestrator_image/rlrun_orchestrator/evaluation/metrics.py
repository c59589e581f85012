"""Metrics of an evaluation: avg@k, pass@k, and validation rewards.

A failed rollout has no reward: it is excluded from every mean and counted in `error`. An example counts for pass@k only
if it has at least k valid rollouts.

Rewards of different agents in an environment have no common mean, because one agent's win may be another's loss. Each
agent is measured separately, and the environment's metrics are unweighted means over its agents.
"""

import math
from collections.abc import Mapping, Sequence

from rlrun.protocol.environment import RolloutResult

from rlrun_orchestrator.data.batch_metrics import MAX_NAMED_AGENTS

SUCCESS = 1.0
"""Minimum reward of a rollout that counts as passing in pass@k. Assumes rewards between 0 and 1."""


def pass_at_k(rollouts: int, successes: int, k: int) -> float:
    """Return the probability that at least one of k rollouts, drawn from `rollouts` without replacement, passes.

    Computes 1 - C(n - c, k) / C(n, k), the unbiased estimator of Chen et al. 2021, "Evaluating Large Language Models
    Trained on Code", equation 1. Raises ValueError unless 0 <= successes <= rollouts and 1 <= k <= rollouts.
    """
    if not (0 <= successes <= rollouts and 1 <= k <= rollouts):
        raise ValueError(f"pass@{k} of {successes} successes in {rollouts} rollouts is not defined")
    return 1.0 - math.comb(rollouts - successes, k) / math.comb(rollouts, k)


def k_values(rollouts: int) -> list[int]:
    """Return the values of k for pass@k: the powers of two up to `rollouts`, and `rollouts` itself."""
    powers = [2**i for i in range(rollouts.bit_length())]
    return sorted({k for k in powers if k <= rollouts} | {rollouts})


def evaluation_values(environment: str, rollouts: int, results: Sequence[Sequence[RolloutResult]]) -> dict[str, float]:
    """Return the metrics `eval/<environment>/...`. `results` has one entry per example, which is empty if the example
    failed.
    """
    base = f"eval/{environment}"
    values = {f"{base}/error": _error_share(results, rollouts), f"{base}/examples": float(len(results))}
    valid = [rollout for group in results for rollout in group if is_valid(rollout)]
    if not valid:
        return values
    values[f"{base}/is_truncated"] = _mean([float(rollout.is_truncated) for rollout in valid])
    by_agent = {agent: _success_values(groups, rollouts) for agent, groups in rewards_by_agent(results).items()}
    return values | _with_agents(base, by_agent)


def _success_values(groups: Sequence[Sequence[float]], rollouts: int) -> dict[str, float]:
    """Return avg@k and pass@k for the rewards of one agent, given per example."""
    values = {f"avg@{rollouts}": _mean([reward for group in groups for reward in group])}
    for k in k_values(rollouts):
        enough = [group for group in groups if len(group) >= k]
        if enough:
            chances = [pass_at_k(len(group), sum(r >= SUCCESS for r in group), k) for group in enough]
            values[f"pass@{k}"] = _mean(chances)
    return values


def _with_agents(base: str, by_agent: Mapping[str | None, Mapping[str, float]]) -> dict[str, float]:
    """Return the means over the agents and, if there are several, the values of each agent."""
    names = dict.fromkeys(name for values in by_agent.values() for name in values)
    found = {f"{base}/{name}": _mean([v[name] for v in by_agent.values() if name in v]) for name in names}
    if 1 < len(by_agent) <= MAX_NAMED_AGENTS:
        found |= {f"{base}/{agent}/{name}": v for agent, own in by_agent.items() if agent for name, v in own.items()}
    return found


def validation_values(environment: str, rollouts: int, results: Sequence[Sequence[RolloutResult]]) -> dict[str, float]:
    """Return the metrics `val_reward/<environment>/...`."""
    base = f"val_reward/{environment}"
    values = {f"{base}/error": _error_share(results, rollouts), f"{base}/examples": float(len(results))}
    agents = rewards_by_agent(results).items()
    return values | _with_agents(base, {a: {"mean": _mean([r for g in groups for r in g])} for a, groups in agents})


def validation_total(results: Sequence[Sequence[RolloutResult]]) -> dict[str, float]:
    """Return the metric `val_reward/mean` over the valid rollouts of all environments, or an empty dictionary if there
    are none.
    """
    rewards = [reward for group in valid_rewards(results) for reward in group]
    return {"val_reward/mean": _mean(rewards)} if rewards else {}


def rewards_by_agent(results: Sequence[Sequence[RolloutResult]]) -> dict[str | None, list[list[float]]]:
    """Return the rewards of the valid rollouts of each agent, per example. Examples without rewards are omitted."""
    found: dict[str | None, list[list[float]]] = {}
    for group in results:
        own: dict[str | None, list[float]] = {}
        for rollout in filter(is_valid, group):
            own.setdefault(rollout.agent, []).append(rollout.reward)
        for agent, rewards in own.items():
            found.setdefault(agent, []).append(rewards)
    return found


def valid_rewards(results: Sequence[Sequence[RolloutResult]]) -> list[list[float]]:
    """Return the rewards of the valid rollouts, per example."""
    return [[rollout.reward for rollout in group if is_valid(rollout)] for group in results]


def is_valid(rollout: RolloutResult) -> bool:
    """Return True if the rollout did not fail and has a finite reward."""
    return rollout.error is None and math.isfinite(rollout.reward)


def _error_share(results: Sequence[Sequence[RolloutResult]], rollouts: int) -> float:
    """Return the fraction of failed rollouts among the requested rollouts, or among the reported rollouts if there are
    more.
    """
    wanted = sum(max(rollouts, len(group)) for group in results)
    return 1.0 - sum(map(len, valid_rewards(results))) / wanted if wanted else 0.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
