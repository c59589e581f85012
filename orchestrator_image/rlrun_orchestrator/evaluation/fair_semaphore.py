"""Places that tasks share: first come, first served, each taking as many as it needs."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairSemaphore:
    """At most `places` are taken at a time; whoever needs more than there are gets the whole room alone."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def acquire(self, places: int) -> AsyncIterator[None]:
        """Waits for its turn, and gives the places back at the end."""
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
        """From now on there are at least that many places."""
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
