"""Waiting longer after each failure, as a value without clock or sleep, so that it can be tested as arithmetic."""

from dataclasses import dataclass

STARTING_SECONDS = 0.5
"""Between two tries of a component that does not answer: most likely its pod is starting, and the whole run waits."""


@dataclass
class Backoff:
    """Doubling pauses from `first` to `longest` seconds; one success forgets all failures."""

    first: float = 1.0
    longest: float = 60.0
    failures: int = 0
    until: float = 0.0
    """No try before this time."""
    _since: float = float("-inf")

    def failed(self, now: float, started: float | None = None) -> None:
        """A try that began at `started` failed at `now`.

        Tries that were already under way when the last pause was set say nothing new: thirty requests that die with
        one server are one failure, not thirty.
        """
        if started is not None and started < self._since:
            return
        self.failures += 1
        self._since = now
        self.until = now + self.pause

    def succeeded(self) -> None:
        """Something worked: the next failure starts from the shortest pause."""
        self.failures = 0
        self.until = 0.0

    @property
    def pause(self) -> float:
        """Seconds of the pause after the failures so far."""
        return min(self.first * 2.0 ** min(self.failures - 1, 30), self.longest) if self.failures else 0.0

    def open(self, now: float) -> bool:
        """Whether a try is allowed."""
        return now >= self.until
