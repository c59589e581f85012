"""Reward curves: the step at which a curve reaches a target, with its time and rollouts.

Both sides of a comparison write the same trace: one `Step` per optimizer step, with time starting at the first step.
All comparisons read traces here, so that both sides follow the same rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

WINDOW = 3
"""Number of steps whose mean reward must reach the target, because the reward of one step is noisy."""


@dataclass(frozen=True)
class Step:
    """Optimizer step."""

    seconds: float
    """Seconds from the start of the first step to the end of this one."""
    reward: float
    """Mean reward of the rollouts of the step."""
    rollouts: int
    """Number of these rollouts."""


@dataclass(frozen=True)
class Trace:
    """Trace of one run of either side of a comparison."""

    steps: Sequence[Step]
    startup_seconds: float
    """Seconds from the command to the start of the first step, which are not part of any ratio."""
    seed: int = 0
    """Seed of the run. Runs of both sides with the same seed are compared."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Further facts: versions, counters."""

    @property
    def trained(self) -> int:
        """Number of rollouts trained on."""
        return sum(step.rollouts for step in self.steps)

    def sample(self, **what: Any) -> dict[str, Any]:
        """Return all values, for the results file."""
        return {
            **what,
            "seed": self.seed,
            "startup_seconds": self.startup_seconds,
            "seconds": [s.seconds for s in self.steps],
            "rewards": [s.reward for s in self.steps],
            "rollouts": [s.rollouts for s in self.steps],
            **self.facts,
        }


@dataclass(frozen=True)
class Arrival:
    """Number of steps, seconds and rollouts until a target was reached."""

    steps: int
    seconds: float
    rollouts: int


def arrival(steps: Sequence[Step], target: float, window: int = WINDOW) -> Arrival | None:
    """Return the first step at which the mean of the last `window` rewards reaches the target, or None."""
    for count in range(window, len(steps) + 1):
        if fmean(step.reward for step in steps[count - window : count]) >= target:
            return Arrival(count, steps[count - 1].seconds, sum(step.rollouts for step in steps[:count]))
    return None


def drawn_rollouts(trace: Trace, trained: int, per_group: int) -> int:
    """Return the number of rollouts drawn in order to train on `trained` of them, including discarded and unused
    rollouts.

    Counts the rollouts of all groups, of every outcome, in one status of the run. `trained` comes from metrics, which
    are read at a different time, so the two numbers are not added: a group that is in progress in the status may be
    trained in the metrics. If the status lags behind the metrics, the result is at least `trained`. TRL's runs have no
    groups and train on every rollout.
    """
    groups: dict[str, int] = trace.facts.get("groups", {})
    return max(trained, sum(groups.values()) * per_group)


def steps_per_hour(steps: Sequence[Step]) -> float | None:
    """Return optimizer steps per hour without the first step, which fills the pipeline, or None for too few steps."""
    return 3600 * (len(steps) - 1) / (steps[-1].seconds - steps[0].seconds) if len(steps) > 1 else None
