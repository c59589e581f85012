"""Rate limits, for requests to the API server and for CPU-intensive work."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from weakref import WeakValueDictionary

from rlrun.kube.async_transport import AsyncTransport
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest
from typing_extensions import override


class RateLimit:
    """Token bucket: `burst` requests at once, and `per_second` more each second. Requests are served in order of
    arrival.
    """

    def __init__(
        self,
        per_second: float,
        burst: int,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._sleep = sleep
        self._tokens = float(burst)
        """Available tokens. Negative if requests are waiting."""
        self._at = clock()

    async def wait(self) -> float:
        """Wait until the next request may start. Returns the seconds waited."""
        now = self._clock()
        self._tokens = min(float(self._burst), self._tokens + (now - self._at) * self._per_second) - 1
        self._at = now
        pause = max(0.0, -self._tokens / self._per_second)
        if pause:
            try:
                await self._sleep(pause)
            except asyncio.CancelledError:
                self._tokens += 1
                raise
        return pause


class FairRateLimit:
    """`RateLimit` with round-robin over tenants: one request per tenant waits for the limit, and the tenant's other
    requests wait behind it.
    """

    def __init__(self, limit: RateLimit) -> None:
        self._limit = limit
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def wait(self, tenant: str) -> bool:
        """Wait until the tenant's request may start. Returns whether it had to wait."""
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        is_behind = turn.locked()
        async with turn:
            return await self._limit.wait() > 0 or is_behind


class RateLimitedTransport(AsyncTransport):
    """`AsyncTransport` whose requests wait for the limit, except streams (watches and logs)."""

    def __init__(self, transport: AsyncTransport, limit: RateLimit) -> None:
        self._transport = transport
        self._limit = limit

    @override
    async def send(self, request: KubeRequest) -> Obj:
        await self._limit.wait()
        return await self._transport.send(request)

    @override
    def stream(self, request: KubeRequest) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._transport.stream(request)

    @override
    async def close(self) -> None:
        await self._transport.close()
