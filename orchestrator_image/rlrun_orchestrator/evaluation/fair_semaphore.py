"""Semaphore with a weight per task, first come first served."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairSemaphore:
    """Semaphore with a weight per task, first come first served. A task that needs more than the limit runs alone."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def acquire(self, places: int) -> AsyncIterator[None]:
        """Wait for the task's turn, and release its weight at the end."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((places, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(places)
            raise
        finally:
            self._admit()
        try:
            yield
        finally:
            self._leave(places)

    def raise_limit(self, places: int) -> None:
        """Raise the limit to at least this value."""
        self.places = max(self.places, places)
        self._admit()

    def _leave(self, places: int) -> None:
        self.taken -= places
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            places, turn = self._waiting[0]
            if turn.done():  # its task was cancelled while it waited
                self._waiting.popleft()
                continue
            if self.taken and self.taken + places > self.places:
                return
            self._waiting.popleft()
            self.taken += places
            turn.set_result(None)
