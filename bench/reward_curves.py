"""When a curve of rewards arrives at a target, and what it took to get there. Pure.

Both sides of a comparison leave the same trace: one `Step` per optimizer step, with the clock started when the first
step started. What is compared is read from it in one place, so that no side is judged by another rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

WINDOW = 3
"""Steps whose mean reward has to reach the target: one step alone is mostly luck."""


@dataclass(frozen=True)
class Step:
    """One optimizer step."""

    seconds: float
    """From the start of the first step to the end of this one."""
    reward: float
    """Mean reward of the rollouts that it trained on."""
    rollouts: int
    """How many those were."""


@dataclass(frozen=True)
class Trace:
    """A run, from either side."""

    steps: Sequence[Step]
    startup_seconds: float
    """From the command to the start of the first step; never part of a ratio."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What else is known: versions, counters."""

    def sample(self, **what: Any) -> dict[str, Any]:
        """Everything, for the file of results."""
        return {
            **what,
            "startup_seconds": self.startup_seconds,
            "seconds": [s.seconds for s in self.steps],
            "rewards": [s.reward for s in self.steps],
            "rollouts": [s.rollouts for s in self.steps],
            **self.facts,
        }


@dataclass(frozen=True)
class Arrival:
    """What it took to reach a target."""

    steps: int
    seconds: float
    rollouts: int


def moving_means(rewards: Sequence[float], window: int = WINDOW) -> list[float]:
    """Mean of the last `window` rewards at each step that has so many behind it."""
    return [fmean(rewards[i - window : i]) for i in range(window, len(rewards) + 1)]


def arrival(steps: Sequence[Step], target: float, window: int = WINDOW) -> Arrival | None:
    """The first step at which the moving mean reaches the target, or None when it never does."""
    for index, value in enumerate(moving_means([s.reward for s in steps], window)):
        if value >= target:
            count = index + window
            return Arrival(count, steps[count - 1].seconds, sum(s.rollouts for s in steps[:count]))
    return None


def steps_per_hour(steps: Sequence[Step], skip: int = 1) -> float | None:
    """Optimizer steps per hour between the end of step `skip` and the last one; None for too few steps.

    The first step fills the pipeline and is left out.
    """
    if len(steps) <= skip:
        return None
    begin = steps[skip - 1].seconds if skip else 0.0
    return 3600 * (len(steps) - skip) / (steps[-1].seconds - begin)
