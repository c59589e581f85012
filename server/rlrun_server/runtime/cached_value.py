"""Values that are read again after a time. Not for values that differ by request."""

from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class CachedValue(Generic[V]):
    """Value of `read`, which is called again when `seconds` have passed."""

    def __init__(self, read: Callable[[], V], seconds: float, clock: Callable[[], float]) -> None:
        self._read = read
        self._seconds = seconds
        self._clock = clock
        self._held: tuple[float, V] | None = None

    def value(self) -> V:
        """Return the value, at most `seconds` old. Raises what `read` raises."""
        now = self._clock()
        if self._held is None or now >= self._held[0] + self._seconds:
            self._held = (now, self._read())
        return self._held[1]
