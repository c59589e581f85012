"""Circuit breaker: decides which calls to a service are made while the service may be down.

| state | permitted calls | next state |
|---|---|---|
| closed | all | open after `failures` failures in a row, or after one that lasted `slow_seconds` |
| open | none | half-open with the first call after the pause |
| half-open | only that call, the probe | closed if the service responds; otherwise open, with twice the pause |

A slow failure opens the circuit breaker immediately, because each further failure would block its caller for as long as
the first. Results of calls that started before the last change of state are ignored, so eight calls that fail at the
same time open the circuit breaker only once. Pauses are at most `longest_pause_seconds`, before jitter.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

JITTER = 0.2
"""Maximum relative jitter of a pause, so that several operators do not probe at the same time."""


class BreakerState(StrEnum):
    """State of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True)
class BreakerLimits:
    """Thresholds of a circuit breaker."""

    failures: int = 3
    """Number of consecutive failures that open the circuit breaker."""
    slow_seconds: float = 2.0
    """Duration in seconds of a single failure that opens the circuit breaker."""
    first_pause_seconds: float = 2.0
    longest_pause_seconds: float = 15.0


DEFAULT_LIMITS = BreakerLimits()


@dataclass(frozen=True)
class Permit:
    """Permission for one call. The caller passes it back to report the result."""

    started: float
    changes: int
    """Number of state changes before the call."""


class CircuitBreaker:
    """Circuit breaker of one service. Not thread-safe: use it from one event loop only."""

    def __init__(
        self,
        limits: BreakerLimits = DEFAULT_LIMITS,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.state = BreakerState.CLOSED
        self._limits = limits
        self._clock = clock
        self._jitter = jitter
        self._changes = 0
        self._failures = 0
        self._pauses = 0
        self._paused_until = 0.0

    @property
    def is_closed(self) -> bool:
        """True if every call is permitted."""
        return self.state is BreakerState.CLOSED

    def acquire(self) -> Permit | None:
        """Return the permission for a call, or None if the call must not be made."""
        now = self._clock()
        if self.state is BreakerState.OPEN and now >= self._paused_until:
            self._change(BreakerState.HALF_OPEN)
        elif not self.is_closed:
            return None
        return Permit(now, self._changes)

    def record_success(self, permit: Permit) -> None:
        """Record that the service responded to the call."""
        if not self._counts(permit):
            return
        self._failures = 0
        if not self.is_closed:
            self._pauses = 0
            self._change(BreakerState.CLOSED)

    def record_failure(self, permit: Permit) -> None:
        """Record that the service did not respond to the call."""
        if not self._counts(permit):
            return
        self._failures += 1
        is_slow = self._clock() - permit.started >= self._limits.slow_seconds
        if is_slow or self._failures >= self._limits.failures or not self.is_closed:
            self._open()

    def abandon(self, permit: Permit) -> None:
        """Record that the call ended without information about the service's health. If the call was the probe, the
        next call becomes the probe.
        """
        if self._counts(permit) and self.state is BreakerState.HALF_OPEN:
            self._change(BreakerState.OPEN)

    def _counts(self, permit: Permit) -> bool:
        return permit.changes == self._changes

    def _open(self) -> None:
        limits = self._limits
        pause = min(limits.first_pause_seconds * 2.0 ** min(self._pauses, 30), limits.longest_pause_seconds)
        self._paused_until = self._clock() + pause * (1 + JITTER * (2 * self._jitter() - 1))
        self._pauses += 1
        self._failures = 0
        self._change(BreakerState.OPEN)

    def _change(self, state: BreakerState) -> None:
        self.state = state
        self._changes += 1
