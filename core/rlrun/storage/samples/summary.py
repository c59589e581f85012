"""Summary of a stored object: the values for charts over steps, and the object's name.

A run writes one line per object to `rollouts/steps/part-*.jsonl`. A step that is repeated after a restart writes its
lines again; later lines take precedence.
"""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, stdev

from pydantic import ConfigDict, Field

from rlrun.api.base.names import Text
from rlrun.api.base.received import InputLimits
from rlrun.api.base.schema import Schema
from rlrun.storage.samples.index import SampleIndex
from rlrun.storage.samples.record import Finite, SampleSplit, SampleStatus

MAX_GROUPS = 512
"""Maximum number of groups in a line. The index of the object has all groups."""
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


class RewardSummary(Schema):
    """Rewards of the rollouts that did not fail."""

    model_config = ConfigDict(extra="ignore")

    mean: Finite
    quantiles: list[Finite] = Field(max_length=len(QUANTILES))
    """Minimum, 5th, 25th, 50th, 75th and 95th percentile, maximum."""
    standard_error: Finite | None = None
    """Standard error of the mean, computed over group means because rollouts of a group are not independent. None for a
    single group.
    """


class StepSamples(Schema):
    """Summary of one S3 object with rollouts."""

    model_config = ConfigDict(extra="ignore")
    wire_limits = InputLimits(size=256 * 1024, values=6 * MAX_GROUPS)

    step: int
    split: SampleSplit
    environment: Text | None = None
    """Environment of a validation or evaluation. None for the splits `train` and `filtered`, which mix environments."""
    file: Text
    """Name of the object below the run's folder `rollouts`."""
    size: int
    """Size of the object in bytes."""
    counts: dict[SampleStatus, int] = Field(max_length=len(SampleStatus))
    reward: RewardSummary | None = None
    groups: list[tuple[Text, int, Finite]] = Field(default_factory=list, max_length=MAX_GROUPS)
    """Environment, example and mean reward of each group, at most MAX_GROUPS."""
    omitted: int = 0
    """Number of rollouts that are not stored, because there were too many."""

    @property
    def key(self) -> tuple[int, str, str]:
        """Sort key. Two versions of one object have the same key."""
        return self.step, self.split, self.environment or ""


def summarize(index: SampleIndex, *, environment: str | None, file: str, size: int, omitted: int) -> StepSamples:
    """Return the summary of an object with this index."""
    means = [(g.environment, g.example, fmean(rewards)) for g in index.groups if (rewards := g.rewards)]
    return StepSamples(
        step=index.step,
        split=index.split,
        environment=environment,
        file=file,
        size=size,
        counts=dict(Counter(row.status for _, row in index.pairs())),
        reward=_rewards([r for group in index.groups for r in group.rewards], [mean for *_, mean in means]),
        groups=means[:MAX_GROUPS],
        omitted=omitted,
    )


def _rewards(rewards: list[float], group_means: Sequence[float]) -> RewardSummary | None:
    if not rewards:
        return None
    ordered = sorted(rewards)
    return RewardSummary(
        mean=fmean(rewards),
        quantiles=[quantile(ordered, share) for share in QUANTILES],
        standard_error=stdev(group_means) / math.sqrt(len(group_means)) if len(group_means) > 1 else None,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of the ordered values, interpolated as numpy does by default."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
