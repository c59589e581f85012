"""Delays from events and steps of runs to the statuses that show them. Pure."""

from collections.abc import Hashable

from bench.scale.testbed.orchestrators import StepSchedule


class EventDelays:
    """Delay of every event. An event that no status has shown counts with its age."""

    def __init__(self) -> None:
        self._caused: dict[Hashable, float] = {}
        self._shown: dict[Hashable, float] = {}

    def cause(self, key: Hashable, now: float) -> None:
        """Record an event. `now` is Unix time, or the time of any clock that `show` also uses."""
        self._caused[key] = now

    def show(self, key: Hashable, now: float) -> None:
        """Record that a status shows an event. Only the first call after the event counts."""
        if key in self._caused:
            self._shown.setdefault(key, now)

    @property
    def missing(self) -> int:
        """Number of events that no status has shown."""
        return len(self._caused) - len(self._shown)

    def since(self, moment: float) -> dict[Hashable, float]:
        """Return the seconds from a moment until each shown event was shown, or 0 if it was shown before."""
        return {key: max(0.0, shown - moment) for key, shown in self._shown.items()}

    def until(self, now: float) -> list[float]:
        """Return the delays in seconds, with the ages of the events that were not shown."""
        return [self._shown.get(key, now) - at for key, at in self._caused.items()]


class StepDelays:
    """Delay of every step that was made after a certain time.

    A status may skip steps. Each skipped step counts with its own time, and a step that no status has shown in the end
    counts with its age, because an operator that lags behind must not have the fewest and shortest delays.
    """

    def __init__(self, pace: StepSchedule, began: float) -> None:
        """`began` is the Unix time from which steps count."""
        self._pace = pace
        self._began = began
        self._shown: dict[str, int] = {}
        self._delays: list[float] = []

    @property
    def highest(self) -> int:
        """Highest step that was shown, or the step at the start if that is higher."""
        return max([self._pace.first, *self._shown.values()])

    def show(self, run: str, step: int, now: float) -> None:
        """Record that the status of a run shows a step."""
        first = self._next_step(run)
        self._delays += [now - self._pace.made_at(run, made) for made in range(first, step + 1)]
        self._shown[run] = max(step, first - 1)

    def until(self, now: float) -> list[float]:
        """Return the delays in seconds, with the ages of steps that were made but not shown."""
        missing = [
            now - self._pace.made_at(run, made)
            for run in self._shown
            for made in range(self._next_step(run), self._pace.step(run, now) + 1)
        ]
        return [*self._delays, *missing]

    def _next_step(self, run: str) -> int:
        """Return the first step of the run that counts and has not been shown yet."""
        return max(self._shown.get(run, 0), self._pace.step(run, self._began)) + 1
