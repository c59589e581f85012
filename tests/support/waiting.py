"""Waiting for what other tasks, threads or processes do, which have no event to wait for."""

import asyncio
from collections.abc import Callable

SECONDS = 60.0
"""Far longer than anything takes on a busy machine: a deadline for what never comes, not a measurement."""


async def until(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Return once the condition holds.

    Raises:
        TimeoutError: It does not hold after `seconds`.
    """
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (there is no event)
            await asyncio.sleep(0.005)
