"""Open streams of events, and what they cost the process that serves them."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import aiohttp

from bench.server.process_usage import ProcessUsage, usage_during

OPEN_SECONDS = 60.0
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30)

T = TypeVar("T")


async def measure_streams(
    urls: Sequence[str], headers: Sequence[Mapping[str, str]], pid: int, seconds: float
) -> tuple[ProcessUsage, ProcessUsage]:
    """Return the usage of the process before the streams are open, and while they are.

    `headers` are those of the users, who take turns on `urls`. Raises RuntimeError for a stream that is refused or
    that ends.
    """
    before = await asyncio.to_thread(usage_during, pid, seconds)
    opened = asyncio.Semaphore(0)

    async def read(session: aiohttp.ClientSession, url: str, own: Mapping[str, str]) -> None:
        async with session.get(url, headers={**own, "Accept": "text/event-stream"}) as response:
            if response.status != 200 or response.content_type != "text/event-stream":
                text = (await response.content.read(300)).decode(errors="replace")
                raise RuntimeError(f"{url}: {response.status} {response.content_type} {text}")
            opened.release()
            async for _ in response.content.iter_any():
                pass
        raise RuntimeError(f"{url}: the stream ended")

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=TIMEOUT) as session:
        tasks = [
            asyncio.create_task(read(session, url, headers[number % len(headers)])) for number, url in enumerate(urls)
        ]
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                for _ in tasks:
                    await _any(opened.acquire(), tasks)
            during = await _any(asyncio.to_thread(usage_during, pid, seconds), tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return before, during


async def _any(work: Coroutine[Any, Any, T], tasks: Sequence["asyncio.Task[None]"]) -> T:
    """Return the result of the work. Raises what a stream raises before that."""
    own = asyncio.create_task(work)
    await asyncio.wait([own, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():
            own.cancel()
            await task
    return own.result()
