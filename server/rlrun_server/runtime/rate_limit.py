"""Rate limits per namespace, user or address, so that none of them can exhaust the server."""

from collections import OrderedDict
from dataclasses import dataclass

REMEMBERED = 10_000


@dataclass(frozen=True)
class Rate:
    """Sustained requests per second, and size of a burst."""

    per_second: float
    burst: float


class RateLimiter:
    """Rate limiter with one token bucket per namespace, user or address."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Number of tokens left, and the time at which it was computed."""

    def allow(self, namespace: str, now: float, count: int = 1) -> bool:
        """Take `count` tokens from the namespace's bucket. Returns False if the bucket holds less than one token.

        One token is enough for any `count`. The missing tokens are a debt that delays later requests.
        """
        left, counted = self._buckets.get(namespace, (self._rate.burst, now))
        left = min(self._rate.burst, left + (now - counted) * self._rate.per_second)
        allowed = left >= 1
        self._buckets[namespace] = (left - count if allowed else left, now)
        self._buckets.move_to_end(namespace)
        while len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        return allowed

    def give_back(self, namespace: str) -> None:
        """Put back one token that `allow` took."""
        if namespace in self._buckets:
            left, counted = self._buckets[namespace]
            self._buckets[namespace] = (min(self._rate.burst, left + 1), counted)
