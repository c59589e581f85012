"""Queues of requests with large bodies, so that memory holds at most one body per session and kind of request."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from rlrun.constants import LATER, Reason
from rlrun.service.errors import ProblemError

MAX_REQUESTS = 2
"""Maximum number of concurrent requests per session: the request in progress, and the client's repetition of it after a
timeout.
"""


class BodyTurns:
    """Queue per session for one kind of request with a large body: one request at a time, and at most one waiting.

    Not thread-safe; use it on the event loop only.
    """

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
                f"{MAX_REQUESTS} requests of this kind are in progress for this session. Retry in a few seconds.",
            )
        self._requests[session] += 1
        try:
            async with self._locks.setdefault(session, asyncio.Lock()):
                yield
        finally:
            self._requests[session] -= 1
            if not self._requests[session]:
                del self._requests[session]
