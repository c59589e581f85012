"""Cancellation of work whose client disconnects."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientLeft(Exception):
    """Raised by `until_left` if the client disconnects before the work completes."""


async def until_left(receive: Receive, work: Coroutine[Any, Any, T], deadline: float) -> T:
    """Run `work` and return its result. Cancels `work` and raises ClientLeft if the client disconnects, or TimeoutError
    at the deadline.

    `receive` returns messages of a request whose body has been read. `deadline` is a time on the event loop's clock.
    """
    task = asyncio.create_task(work)
    left = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        async with asyncio.timeout_at(deadline):
            await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientLeft
    finally:
        for pending in (task, left):
            pending.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
