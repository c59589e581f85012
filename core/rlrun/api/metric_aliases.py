"""Names that self-managed trainers use for a run's metrics. docs/reference/metrics.md describes the metrics."""

from collections.abc import Mapping
from typing import Any

ALIASES = {
    "train/reward": "reward/mean",
    "train/loss": "loss/mean",
    "train/learning_rate": "optim/lr",
    "train/kl_divergence": "kl_penalty/kl",
    "rollout/mean_length": "seq_len/mean",
    "rollout/generation_time": "time/generate_completions",
}
"""Name of rlrun's metric, by the name in the documentation of self-managed trainers."""


def with_aliases(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics, with a copy of each aliased metric under its alias."""
    return {**values, **{alias: values[metric] for alias, metric in ALIASES.items() if metric in values}}


def canonical(name: str) -> str:
    """Return the name of the metric for an alias. Other names are returned unchanged."""
    return ALIASES.get(name, name)
