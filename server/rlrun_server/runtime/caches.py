"""Caches for reviews by the API server and for values that expire."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

REFUSED_SECONDS = 5.0
REMEMBERED = 20_000
CONCURRENT_REVIEWS = 16

Result = TypeVar("Result")


class ReviewCache(Generic[Result]):
    """Cache of reviews. Runs at most one review per key at a time, and at most CONCURRENT_REVIEWS in total."""

    def __init__(
        self,
        is_accepted: Callable[[Result], bool],
        accepted_seconds: float,
        clock: Callable[[], float],
        refused_seconds: Callable[[Result], float] = lambda _: REFUSED_SECONDS,
    ) -> None:
        """Results that `is_accepted` accepts are cached for `accepted_seconds`. Other results are cached for the number
        of seconds that `refused_seconds` returns.
        """
        self._is_accepted = is_accepted
        self._accepted_seconds = accepted_seconds
        self._refused_seconds = refused_seconds
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, Result, float]] = OrderedDict()
        """Time until which a result is cached, the result, and the time of the result."""
        self._pending: dict[bytes, asyncio.Task[Result]] = {}
        self._slots = asyncio.Semaphore(CONCURRENT_REVIEWS)

    def knows(self, key: bytes) -> bool:
        """Return whether `get` starts no review, because the result is cached or its review is in progress."""
        return key in self._pending or (key in self._known and self._clock() < self._known[key][0])

    def has_accepted(self, key: bytes) -> bool:
        """Return whether the last result of this key was accepted, even if it has expired."""
        return key in self._known and self._is_accepted(self._known[key][1])

    def expire(self, key: bytes, min_age: float = 0.0) -> None:
        """Make `get` call `ask` as soon as the last result is `min_age` seconds old."""
        if key in self._known:
            until, result, of = self._known[key]
            self._known[key] = (min(until, of + min_age), result, of)

    def keep_accepted(self, key: bytes) -> Result | None:
        """Cache the last result again, although it has expired, and return it. Returns None if it was not accepted."""
        if not self.has_accepted(key):
            return None
        result = self._known[key][1]
        self._known[key] = (self._clock() + self._accepted_seconds, result, self._clock())
        return result

    async def get(self, key: bytes, ask: Callable[[], Awaitable[Result]]) -> Result:
        """Return the cached result of this key, or call `ask`. Propagates exceptions of `ask`."""
        if key in self._known and self._clock() < self._known[key][0]:
            return self._known[key][1]
        task = self._pending.get(key)
        if task is None:
            task = self._pending[key] = asyncio.create_task(self._ask(ask))
            task.add_done_callback(lambda done: self._remember(key, done))
        # The review continues if one of several clients disconnects.
        return await asyncio.shield(task)

    async def _ask(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        async with self._slots:
            return await ask()

    def _remember(self, key: bytes, task: "asyncio.Task[Result]") -> None:
        self._pending.pop(key, None)
        if task.cancelled() or task.exception() is not None:
            return
        answer = task.result()
        seconds = self._accepted_seconds if self._is_accepted(answer) else self._refused_seconds(answer)
        self._known[key] = (self._clock() + seconds, answer, self._clock())
        self._known.move_to_end(key)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)


V = TypeVar("V")


class FetchedValue(Generic[V]):
    """Cached result of `fetch`. A failure is not cached, but all waiting callers receive it."""

    def __init__(self, fetch: Callable[[], Awaitable[V]], clock: Callable[[], float]) -> None:
        self._fetch = fetch
        self._clock = clock
        self._held: tuple[float, V] | None = None
        self._pending: asyncio.Task[V] | None = None

    async def value(self, max_age: float) -> V:
        """Return the cached value if it is at most `max_age` seconds old, else fetch it. Raises what `fetch` raises."""
        if self._held is not None and self._clock() < self._held[0] + max_age:
            return self._held[1]
        if self._pending is None or self._pending.done():
            self._pending = asyncio.create_task(self._fetch_and_hold())
            # Retrieve the exception, because all clients may have disconnected.
            self._pending.add_done_callback(lambda done: done.cancelled() or done.exception())
        # The request continues if one of several clients disconnects.
        return await asyncio.shield(self._pending)

    def put(self, value: V) -> None:
        """Cache a value that is newer than the result of a fetch in progress."""
        self._held = (self._clock(), value)

    async def _fetch_and_hold(self) -> V:
        began = self._clock()
        value = await self._fetch()
        if self._held is None or began >= self._held[0]:
            self._held = (began, value)
        return value


class CachedValue(Generic[V]):
    """Result of `read`, cached for `seconds`."""

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
