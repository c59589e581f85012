"""Small server of these tests, in a thread."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web


@contextmanager
def served(*routes: web.RouteDef) -> Iterator[str]:
    """Serve the routes and yield the URL."""
    loop, started = asyncio.new_event_loop(), threading.Event()
    found: dict[str, Any] = {}

    async def run() -> None:
        app = web.Application()
        app.add_routes(routes)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        found["port"], found["stop"] = runner.addresses[0][1], asyncio.Event()
        started.set()
        await found["stop"].wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield f"http://127.0.0.1:{found['port']}"
    finally:
        loop.call_soon_threadsafe(found["stop"].set)
        thread.join(20)
        loop.close()
