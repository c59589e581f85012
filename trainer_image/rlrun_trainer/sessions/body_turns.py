"""Turns of requests with large bodies, so that memory holds at most one such body per session."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from rlrun.constants import LATER, Reason
from rlrun.service.errors import ProblemError

MAX_REQUESTS = 2
"""Maximum number of a session's concurrent requests: the one in progress, and its repetition after the client's
timeout.
"""


class BodyTurns:
    """Turns of the sessions' requests of one kind. Used on the event loop."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._requests: Counter[str] = Counter()

    @asynccontextmanager
    async def turn(self, session: str) -> AsyncIterator[None]:
        """Context in which the server reads a request's body and responds. Waits for the session's earlier request.
        Raises ProblemError (`TooManyRequests`, 503) if another request already waits.

        Requests do not end with their connection, so a client could start any number of them.
        """
        if self._requests[session] >= MAX_REQUESTS:
            raise ProblemError.of(
                LATER,
                Reason.TOO_MANY_REQUESTS,
                f"{MAX_REQUESTS} such requests of this session are in progress. Retry in a few seconds.",
            )
        self._requests[session] += 1
        try:
            async with self._locks.setdefault(session, asyncio.Lock()):
                yield
        finally:
            self._requests[session] -= 1
            if not self._requests[session]:
                del self._requests[session]
