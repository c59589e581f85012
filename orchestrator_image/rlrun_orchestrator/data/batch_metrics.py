"""Metrics of one step under the names that docs/reference/metrics.md lists."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rlrun.constants import Reason

from rlrun_orchestrator.data.groups import Group, Rollout
from rlrun_orchestrator.data.reward_histogram import histogram_values
from rlrun_orchestrator.data.scoring import episode_of

Value = float | list[float]
"""Number, or counts of a histogram."""

BOTH = ("time/step", "time/save_ckpt", "perf/throughput")
"""Names of metrics that both orchestrator and trainer report. The trainer's metrics get the prefix `trainer/`."""

MAX_NAMED_AGENTS = 16
"""Maximum number of agents per environment that get metrics of their own."""
UNTAUGHT = (Reason.TEACHER_REFUSED, Reason.TEACHER_ANSWER_UNUSABLE)
"""Reasons why rollouts lack the teacher's log-probabilities."""


def summary_stats(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return `name`/mean, /max and /min, or an empty dictionary if there are no values."""
    if not values:
        return {}
    return {
        f"{name}/mean": math.fsum(values) / len(values),
        f"{name}/max": float(max(values)),
        f"{name}/min": float(min(values)),
    }


def mean(values: Iterable[float]) -> float:
    """Return the arithmetic mean, or 0 if there are no values."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else 0.0


def rewards_by_environment(groups: Sequence[Group]) -> dict[str, list[float]]:
    """Return the rewards of the valid rollouts by environment."""
    rewards: dict[str, list[float]] = {}
    for group in groups:
        rewards.setdefault(group.example.environment, []).extend(group.rewards)
    return rewards


def rewards_by_agent(groups: Sequence[Group]) -> dict[str, list[float]]:
    """Return the rewards of the valid rollouts by `environment/agent`, for environments with several named agents.

    Environments with more than MAX_NAMED_AGENTS agents are omitted, because environment code chooses the names and
    could give each rollout its own.
    """
    rewards: dict[str, dict[str, list[float]]] = {}
    for group in groups:
        agents = rewards.setdefault(group.example.environment, {})
        for rollout in group.valid_rollouts:
            if rollout.result.agent is not None:
                agents.setdefault(rollout.result.agent, []).append(rollout.result.reward)
    several = {environment: agents for environment, agents in rewards.items() if 1 < len(agents) <= MAX_NAMED_AGENTS}
    return {f"{environment}/{name}": own for environment, agents in several.items() for name, own in agents.items()}


def batch_metrics(groups: Sequence[Group], step: int, rollouts_per_example: int) -> dict[str, float]:
    """Return the metrics of the batch used for step `step`."""
    valid = [rollout for group in groups for rollout in group.valid_rollouts]
    all_rollouts = [rollout for group in groups for rollout in group.rollouts]
    samples = [len(rollout.trajectory.sequences) for rollout in valid]
    versions = [rollout.versions for rollout in valid]
    results = [rollout.result for rollout in valid]
    values: dict[str, float] = {
        **summary_stats("reward", [result.reward for result in results]),
        **summary_stats("seq_len", [float(rollout.prompt_tokens + rollout.completion_tokens) for rollout in valid]),
        **summary_stats("prompt_len", [float(rollout.prompt_tokens) for rollout in valid]),
        **summary_stats("completion_len", [float(rollout.completion_tokens) for rollout in valid]),
        **summary_stats("num_turns", [float(rollout.turns) for rollout in valid]),
        **summary_stats("generation_ms", [r.generation_ms for r in results if r.generation_ms is not None]),
        **summary_stats("scoring_ms", [r.scoring_ms for r in results if r.scoring_ms is not None]),
        **summary_stats("batch/off_policy_level", [float(step - min(sampled_by)) for sampled_by in versions]),
        "batch/policies_per_rollout": mean(float(len(sampled_by)) for sampled_by in versions),
        "is_truncated/mean": mean(float(rollout.truncated) for rollout in valid),
        "error/mean": mean(float(rollout.error is not None) for rollout in all_rollouts),
        "batch/effective_batch_size": float(sum(len(group.trained_rollouts) for group in groups)),
        "batch/zero_advantage_rollouts": float(sum(rollout.left_out for rollout in valid)),
        "batch/solve_none": mean(float(all(r <= 0.0 for r in group.rewards)) for group in groups),
        "batch/solve_all": mean(float(all(r >= 1.0 for r in group.rewards)) for group in groups),
        "batch/zero_variance": mean(float(len(set(group.rewards)) <= 1) for group in groups),
        "batch/samples_per_rollout": mean(float(count) for count in samples),
        "batch/prefix_breaks": float(sum(rollout.trajectory.prefix_breaks for rollout in valid)),
        "batch/prefix_bridges": float(sum(rollout.trajectory.bridged for rollout in valid)),
        "batch/missing_rollouts": float(len(groups) * rollouts_per_example - sum(map(_valid_episodes, groups))),
        "time/group": mean(group.seconds for group in groups),
    }
    for name, rewards in sorted((rewards_by_environment(groups) | rewards_by_agent(groups)).items()):
        values[f"reward/{name}/mean"] = mean(rewards)
    return values | distillation_metrics(all_rollouts) | environment_metrics(valid)


def _valid_episodes(group: Group) -> int:
    """Return the number of a group's episodes that have a valid rollout."""
    return len({episode_of(rollout.result) for rollout in group.valid_rollouts})


def distillation_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the number of rollouts for which the teacher returned no usable log-probabilities, or an empty dictionary
    if no teacher scored the rollouts.
    """
    untaught = sum(rollout.error is not None and rollout.error.reason in UNTAUGHT for rollout in rollouts)
    taught = any(rollout.teacher_logprobs is not None for rollout in rollouts)
    return {"batch/untaught_rollouts": float(untaught)} if taught or untaught else {}


def environment_shares(groups: Sequence[Group], weights: Mapping[str, float]) -> dict[str, float]:
    """Return each environment's fraction of the batch's valid rollouts, and its weight, or an empty dictionary if there
    is only one environment.
    """
    if len(weights) < 2:
        return {}
    rollouts = Counter({name: len(rewards) for name, rewards in rewards_by_environment(groups).items()})
    values: dict[str, float] = {}
    for name, weight in weights.items():
        values[f"env_share/{name}/trained"] = rollouts[name] / max(1, rollouts.total())
        values[f"env_share/{name}/weight"] = weight
    return values


def batch_histograms(groups: Sequence[Group]) -> dict[str, list[float]]:
    """Return the reward histograms of the batch."""
    return histogram_values(rewards_by_environment(groups))


def environment_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the environments' own metrics, each as the mean over the rollouts that report it."""
    values: dict[str, list[float]] = {}
    for rollout in rollouts:
        for name, value in rollout.result.metrics.items():
            values.setdefault(name, []).append(value)
    return {f"metrics/{name}/mean": mean(numbers) for name, numbers in sorted(values.items())}


def trainer_metrics(values: Mapping[str, float]) -> dict[str, float]:
    """Prefix the trainer's metrics with `trainer/` if the orchestrator has a metric of the same name."""
    return {f"trainer/{name}" if name in BOTH else name: value for name, value in values.items()}


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Return only the finite values, because JSON cannot represent infinity and NaN."""
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}
