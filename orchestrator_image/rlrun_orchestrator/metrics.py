"""The numbers of one step under the names that users of RL trainers know. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence

from rlrun_orchestrator.rollouts import Group, Rollout


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """`name`/mean, /max and /min; nothing for no values."""
    if not values:
        return {}
    return {
        f"{name}/mean": math.fsum(values) / len(values),
        f"{name}/max": float(max(values)),
        f"{name}/min": float(min(values)),
    }


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean; 0 for no values."""
    found = list(values)
    return math.fsum(found) / len(found) if found else 0.0


def batch_metrics(groups: Sequence[Group], step: int, rollouts_per_example: int) -> dict[str, float]:
    """What the batch that step `step` trains on looks like."""
    good = [rollout for group in groups for rollout in group.good]
    everyone = [rollout for group in groups for rollout in group.rollouts]
    samples = [len(rollout.trajectory.sequences) for rollout in good]
    lag = [float(step - group.version) for group in groups]
    values: dict[str, float] = {
        **spread("reward", [rollout.result.reward for rollout in good]),
        **spread("seq_len", [float(rollout.prompt_tokens + rollout.completion_tokens) for rollout in good]),
        **spread("prompt_len", [float(rollout.prompt_tokens) for rollout in good]),
        **spread("completion_len", [float(rollout.completion_tokens) for rollout in good]),
        **spread("num_turns", [float(rollout.turns) for rollout in good]),
        **spread("batch/off_policy_level", lag),
        "is_truncated/mean": mean(float(rollout.truncated) for rollout in good),
        "error/mean": mean(float(rollout.error is not None) for rollout in everyone),
        "batch/effective_batch_size": float(len(good)),
        "batch/solve_none": mean(float(all(r <= 0.0 for r in group.rewards)) for group in groups),
        "batch/solve_all": mean(float(all(r >= 1.0 for r in group.rewards)) for group in groups),
        "batch/samples_per_rollout": mean(float(count) for count in samples),
        "batch/prefix_breaks": float(sum(rollout.trajectory.prefix_breaks for rollout in good)),
        "batch/missing_rollouts": float(len(groups) * rollouts_per_example - len(good)),
        "time/group": mean(group.seconds for group in groups),
    }
    for name in sorted({group.example.environment for group in groups}):
        ours = [group for group in groups if group.example.environment == name]
        values[f"reward/{name}/mean"] = mean(reward for group in ours for reward in group.rewards)
    return values | environment_metrics(good)


def environment_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """The environments' own metrics, each as the mean over the rollouts that have it."""
    names = sorted({name for rollout in rollouts for name in rollout.result.metrics})
    return {
        f"metrics/{name}/mean": mean(r.result.metrics[name] for r in rollouts if name in r.result.metrics)
        for name in names
    }


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Only what JSON and Prometheus can both carry."""
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}
