"""Loops over thousands of objects that do not block the event loop."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

ITEMS_PER_TURN = 500

T = TypeVar("T")


async def iterate_cooperatively(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items, and let other tasks of the event loop run after every few hundred items."""
    for index, item in enumerate(items, 1):
        yield item
        if index % ITEMS_PER_TURN == 0:
            await asyncio.sleep(0)
