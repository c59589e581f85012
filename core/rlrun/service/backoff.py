"""Pauses that grow with each failure. Pure: no clock and no sleep."""

from dataclasses import dataclass

STARTING_SECONDS = 0.5
"""Pause in seconds between tries of a component that was never reached, whose pod is probably starting."""


@dataclass
class Backoff:
    """Doubling pauses from `first` to `longest` seconds; one success resets them."""

    first: float = 1.0
    longest: float = 60.0
    failures: int = 0
    until: float = 0.0
    """Time before which no try is allowed."""
    _since: float = float("-inf")

    def record_failure(self, now: float, started: float | None = None) -> None:
        """Record that a try that began at `started` failed at `now`.

        Tries that were in progress when the last pause was set do not count: thirty requests that die with one server
        are one failure.
        """
        if started is not None and started < self._since:
            return
        self.failures += 1
        self._since = now
        self.until = now + self.pause

    def record_success(self) -> None:
        """Record a success: the next failure starts from the shortest pause."""
        self.failures = 0
        self.until = 0.0

    @property
    def pause(self) -> float:
        """Pause in seconds after the failures so far."""
        return min(self.first * 2.0 ** min(self.failures - 1, 30), self.longest) if self.failures else 0.0

    def open(self, now: float) -> bool:
        """Return whether a try is allowed."""
        return now >= self.until
