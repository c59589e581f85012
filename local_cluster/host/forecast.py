"""Estimate of the remaining time of a command.

The expected duration of a step was measured by earlier commands on this machine. A step that never ran here is expected
to take as long as in a reference start on a machine with two cores, where tracks ran in parallel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Expected seconds of finished steps above which their actual duration determines the pace of this machine.
_ENOUGH_SECONDS = 60.0


@dataclass(frozen=True)
class CommandSteps:
    """Steps of a command.

    Attributes:
        tracks: Sequences of steps; the tracks run in parallel.
        then: Steps after all tracks.
    """

    tracks: tuple[tuple[str, ...], ...]
    then: tuple[str, ...] = ()

    @property
    def steps(self) -> tuple[str, ...]:
        """All steps without duplicates: the steps of the tracks, which may share steps, then the steps in `then`."""
        return tuple(dict.fromkeys((*(step for track in self.tracks for step in track), *self.then)))


def seconds_left(
    steps: CommandSteps, expected: Mapping[str, float], running: Mapping[str, float], done: Mapping[str, float]
) -> float:
    """Return the seconds until the end of a command.

    Args:
        steps: The steps of the command.
        expected: Expected seconds of each step. A step that is not listed takes none.
        running: Seconds since the start of each running step.
        done: Seconds that each finished step took.
    """
    finished = [step for step in steps.steps if step in done]
    foreseen = sum(expected.get(step, 0.0) for step in finished)
    pace = sum(done[step] for step in finished) / foreseen if foreseen >= _ENOUGH_SECONDS else 1.0

    def time_of(track: Iterable[str]) -> float:
        open_steps = [step for step in track if step not in done]
        return sum(max(0.0, expected.get(step, 0.0) * pace - running.get(step, 0.0)) for step in open_steps)

    return max((time_of(track) for track in steps.tracks), default=0.0) + time_of(steps.then)


def in_words(seconds: float) -> str:
    """Return a duration as text, in whole minutes."""
    minutes = math.ceil(seconds / 60)
    return f"about {minutes} min" if minutes > 1 else "about a minute"
