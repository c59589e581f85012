"""Work that would keep the event loop from other requests: in a thread of its own, with a bounded queue."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from rlrun.constants import Reason

from rlrun_server.rest.problems import RestError

MAX_WAITING = 16

P = ParamSpec("P")
T = TypeVar("T")


class WorkQueue:
    """One thread, and at most MAX_WAITING calls that wait for it.

    The default executor of the event loop is for the renewal of S3 credentials, which must not wait for clients' work.
    """

    def __init__(self, name: str) -> None:
        """`name`: beginning of the thread's name."""
        self._thread = ThreadPoolExecutor(1, name)
        self._unfinished = 0

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of the call. Raises what it raises, and RestError if too many wait."""
        if self._unfinished > MAX_WAITING:
            detail = "rlrun-server has too many requests of this kind at the moment. Repeat the request later."
            raise RestError(503, Reason.TOO_MANY_REQUESTS, detail)
        work = asyncio.get_running_loop().run_in_executor(self._thread, lambda: call(*args, **kwargs))
        self._unfinished += 1
        work.add_done_callback(self._end)
        # A call in the thread goes on, and counts, after its client has left.
        return await asyncio.shield(work)

    def close(self) -> None:
        """End the thread after its present call."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _end(self, _: object) -> None:
        self._unfinished -= 1
