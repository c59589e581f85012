"""Thread for all work with torch. Sessions share the thread, and the event loop is not blocked."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Compute:
    """Executor with a single thread."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the function and return its result. Cancelling the caller does not stop the function."""
        future = self._executor.submit(function, *args, **kwargs)
        return await asyncio.shield(asyncio.wrap_future(future))

    def close(self) -> None:
        """Cancel waiting calls without waiting for the running call."""
        self._executor.shutdown(wait=False, cancel_futures=True)
