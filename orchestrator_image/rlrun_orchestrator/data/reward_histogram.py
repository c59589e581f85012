"""Histograms of rewards in fixed buckets, per environment.

The bounds suit common reward functions: most values are between 0 and 1, and exactly 0 and 1 are the most informative
(a failed rollout, a perfect one) and therefore are bounds. Few are below 0 (penalties) or above 1 (sums of rubrics).
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

BOUNDS = (-1.0, -0.5, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 1.0, 2.0, 5.0)
"""Upper bounds of the buckets, inclusive. One more bucket lies above the last bound."""


@dataclass
class Histogram:
    """Counts by bucket, and the sum of the values."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    """Counts per bucket, not cumulative."""
    total: float = 0.0

    @classmethod
    def of(cls, values: Iterable[float]) -> "Histogram":
        """Return the histogram of these values."""
        histogram = cls()
        histogram.add(values)
        return histogram

    def add(self, values: Iterable[float]) -> None:
        """Count the finite values. Other values are ignored."""
        for value in values:
            if math.isfinite(value):
                self.counts[bisect_left(BOUNDS, value)] += 1
                self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Return pairs of `le` label and cumulative count in Prometheus format. The last label is +Inf."""
        found, count = [], 0
        for bound, more in zip([*map(str, BOUNDS), "+Inf"], self.counts, strict=True):
            count += more
            found.append((bound, float(count)))
        return found


class RewardHistograms:
    """Rewards of all batches since the start of the process, by environment."""

    def __init__(self) -> None:
        self.by_environment: dict[str, Histogram] = {}

    def add(self, rewards: Mapping[str, Sequence[float]]) -> None:
        """Add the rewards of one step, by environment."""
        for environment, values in rewards.items():
            self.by_environment.setdefault(environment, Histogram()).add(values)


def histogram_values(rewards: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return one step's counts, in total and by environment, and the upper bounds of all buckets but the last."""
    everything = Histogram.of(value for values in rewards.values() for value in values)
    metrics = {"reward/histogram": [float(c) for c in everything.counts], "reward/histogram/bounds": list(BOUNDS)}
    for environment, values in sorted(rewards.items()):
        metrics[f"reward/{environment}/histogram"] = [float(c) for c in Histogram.of(values).counts]
    return metrics
