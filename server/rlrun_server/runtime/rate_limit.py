"""Rate limits per namespace: one tenant's processes cannot take the server from the others'. Pure."""

from collections import OrderedDict
from dataclasses import dataclass

REMEMBERED = 10_000


@dataclass(frozen=True)
class Rate:
    """Requests per second in the long run, and at most at once."""

    per_second: float
    burst: float


class RateLimiter:
    """One token bucket per namespace."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Tokens left, and the time at which they were counted."""

    def allow(self, namespace: str, now: float, count: int = 1) -> bool:
        """Take `count` tokens of the namespace. Returns False if it has none left.

        One token is enough for any count, so that no burst is too small; the namespace then waits for the others.
        """
        left, counted = self._buckets.get(namespace, (self._rate.burst, now))
        left = min(self._rate.burst, left + (now - counted) * self._rate.per_second)
        allowed = left >= 1
        self._buckets[namespace] = (left - count if allowed else left, now)
        self._buckets.move_to_end(namespace)
        while len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        return allowed
