"""HTTP endpoints of the operator: /healthz, /readyz and /metrics."""

import asyncio
import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from rlrun.service.server import metrics_handler


class EventLoopWatchdog:
    """Watchdog of the event loop: a task that records the time every second."""

    def __init__(self, limit: float = 30.0) -> None:
        self._limit = limit
        self._last = time.monotonic()

    async def beat(self) -> None:
        """Record the time every second until cancelled."""
        while True:
            self._last = time.monotonic()
            await asyncio.sleep(1)

    def is_alive(self) -> bool:
        """Return whether the event loop has run within the last `limit` seconds."""
        return time.monotonic() - self._last < self._limit


def web_app(
    is_alive: Callable[[], bool], ready: Callable[[], str | None], registry: CollectorRegistry
) -> web.Application:
    """Return the web application. `ready` returns the reason why the process is not ready, or None if it is ready."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok") if is_alive() else web.Response(status=503, text="The event loop is blocked")

    async def readyz(_: web.Request) -> web.Response:
        reason = ready()
        return web.Response(text="ok") if reason is None else web.Response(status=503, text=reason)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics_handler(registry))
    return app
