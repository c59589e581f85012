"""Thread pool that shares its threads fairly between tenants."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from rlrun.constants import Reason

from rlrun_server.rest.base.problems import RestError

MAX_WAITING = 32
"""Maximum number of waiting calls of a tenant."""

P = ParamSpec("P")
T = TypeVar("T")


class TenantQueue:
    """Thread pool in which a tenant (a namespace or a user) uses a limited number of threads at a time.

    The tenant that has waited longest is served next. A tenant with slow calls delays only its own calls, as long as
    there are fewer such tenants than threads.
    """

    def __init__(self, threads: int, name: str, waiting: int | None = None, at_once: int = 1) -> None:
        """`name` is the prefix of the threads' names. A tenant may have at most `waiting` waiting calls, MAX_WAITING by
        default, and at most `at_once` running calls.
        """
        self._threads = ThreadPoolExecutor(threads, name)
        self._max_waiting = waiting
        self._free = threads
        self._waiting: OrderedDict[str, deque[tuple[asyncio.Future[Any], Callable[[], Any]]]] = OrderedDict()
        self._at_once = at_once
        self._busy: Counter[str] = Counter()
        """Number of calls in threads, by tenant."""

    async def run(self, tenant: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of the call. Raises its exceptions, and RestError if too many calls of the tenant wait."""
        calls = self._waiting.setdefault(tenant, deque())
        if len(calls) >= (self._max_waiting or MAX_WAITING):
            detail = (
                f"{tenant} has {len(calls)} requests of this kind waiting, which is the limit. Retry the request later."
            )
            raise RestError(429, Reason.TOO_MANY_REQUESTS, detail)
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        calls.append((result, lambda: call(*args, **kwargs)))
        self._start_waiting()
        # A call in a thread continues after its client has disconnected. A waiting call is skipped.
        return await result

    def close(self) -> None:
        """Stop the threads after their current calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start_waiting(self) -> None:
        while (
            self._free
            and (tenant := next((t for t in self._waiting if self._busy[t] < self._at_once), None)) is not None
        ):
            calls = self._waiting.pop(tenant)
            result, call = calls.popleft()
            if calls:
                self._waiting[tenant] = calls  # behind the other tenants
            if result.done():
                continue
            self._free -= 1
            self._busy[tenant] += 1
            work = asyncio.get_running_loop().run_in_executor(self._threads, call)
            work.add_done_callback(partial(self._end, tenant, result))

    def _end(self, tenant: str, result: "asyncio.Future[Any]", work: "asyncio.Future[Any]") -> None:
        self._free += 1
        self._busy -= Counter((tenant,))
        if work.cancelled():
            result.cancel()
        elif (error := work.exception()) is not None:
            if not result.done():
                result.set_exception(error)
        elif not result.done():
            result.set_result(work.result())
        self._start_waiting()
