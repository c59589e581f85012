"""Exponential back-off, without a clock or sleep of its own."""

from dataclasses import dataclass

STARTING_SECONDS = 0.5
"""Pause in seconds between attempts to reach a component that was never reached and is probably starting."""


@dataclass
class Backoff:
    """Pauses that double from `first` to `longest` seconds, and are reset by a success."""

    first: float = 1.0
    longest: float = 60.0
    failures: int = 0
    until: float = 0.0
    """Time before which no attempt is allowed."""
    _since: float = float("-inf")

    def record_failure(self, now: float, started: float | None = None) -> None:
        """Record that an attempt that started at `started` failed at `now`.

        Failures of attempts that were in progress when the last pause was set are ignored, so thirty requests that fail
        at the same time count as one failure.
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
        """Return whether an attempt is allowed."""
        return now >= self.until
