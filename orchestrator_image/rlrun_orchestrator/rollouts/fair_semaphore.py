"""Semaphore with a weight per task, first come first served."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairSemaphore:
    """Semaphore with a weight per task, first come first served. A task whose weight exceeds the limit runs alone."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.in_use = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def limit(self) -> int:
        """Maximum total weight of running tasks. A higher limit admits waiting tasks."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self._admit()

    @asynccontextmanager
    async def acquire(self, weight: int) -> AsyncIterator[None]:
        """Wait until a task of this weight may run, and release the weight when the context exits."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((weight, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(weight)
            raise
        finally:
            self._admit()
        try:
            yield
        finally:
            self.release(weight)

    def has_capacity(self, weight: int) -> bool:
        """Return True if a task of this weight would not wait."""
        return not self._waiting and (not self.in_use or self.in_use + weight <= self.limit)

    def take(self, weight: int) -> None:
        """Count a task for which `has_capacity` is True. The caller must release its weight."""
        self.in_use += weight

    def release(self, weight: int) -> None:
        """Release the weight of a task."""
        self.in_use -= weight
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            weight, turn = self._waiting[0]
            if turn.done():  # its task was cancelled while it waited
                self._waiting.popleft()
                continue
            if self.in_use and self.in_use + weight > self.limit:
                return
            self._waiting.popleft()
            self.in_use += weight
            turn.set_result(None)
