"""Thread for all work with torch. Runs share it fairly, and the event loop is not blocked.

Work is done in units, such as a micro-batch, which are never interrupted. The next unit belongs to the run with the
least virtual time: the seconds that the run has used. A run that had nothing to do continues at the virtual time of the
others, so that it cannot save up time (start-time fair queueing: Goyal, Vin and Cheng, 1996). Of two runs that always
have work in units of the same length, none is ever more than two units ahead.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Units = Generator[None, None, T]
"""Work that yields between two units and returns its result at the end."""

PLATFORM = ""
"""Owner of work that belongs to no run."""


class Compute:
    """Executor with a single thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` returns seconds."""
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[_Task]] = {}
        """Unfinished tasks of each run that has any, in the order of their calls."""
        self._used: dict[str, float] = {}
        """Virtual time of each run in seconds. Runs that are not ahead of `_now` may be missing."""
        self._now = 0.0
        """Virtual time at which the latest unit started, in seconds."""

    async def run(self, owner: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function for the run `owner` as one unit, and return its result. Cancelling the caller does not stop
        the function.
        """

        def units() -> Units[T]:
            yield from ()
            return function(*args, **kwargs)

        return await self.run_units(owner, units)

    async def run_units(self, owner: str, function: Callable[P, Units[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do the units that the function returns for the run `owner`, and return their result."""
        task = _Task(function(*args, **kwargs), Future())
        with self._lock:
            self._used[owner] = max(self._used.get(owner, 0.0), self._now)
            self._waiting.setdefault(owner, deque()).append(task)
        self._executor.submit(self._do_unit)
        result: T = await asyncio.shield(asyncio.wrap_future(task.result))
        return result

    def close(self) -> None:
        """Cancel waiting calls without waiting for the running unit."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for task in (task for tasks in self._waiting.values() for task in tasks):
                task.result.cancel()

    def _do_unit(self) -> None:
        with self._lock:
            owner = min(self._waiting, key=lambda owner: self._used[owner])
            task = self._waiting[owner][0]
            self._now = self._used[owner]
        started = self._clock()
        settle = task.do_unit()
        with self._lock:
            self._used[owner] += self._clock() - started
            if settle is not None:
                self._waiting[owner].popleft()
                if not self._waiting[owner]:
                    del self._waiting[owner]
                    self._used = {o: used for o, used in self._used.items() if o in self._waiting or used > self._now}
        if settle is not None:
            settle()
            return
        try:
            self._executor.submit(self._do_unit)
        except RuntimeError:  # closed
            task.result.set_exception(CancelledError())


def finish(units: Units[T]) -> T:
    """Do all units and return the result."""
    while True:
        try:
            next(units)
        except StopIteration as end:
            result: T = end.value
            return result


class _Task:
    """Units, and the future for their result."""

    def __init__(self, units: Units[Any], result: "Future[Any]") -> None:
        self.result = result
        self._units = units

    def do_unit(self) -> Callable[[], None] | None:
        """Do the next unit. After the last one, returns the call that completes the future."""
        if not self.result.running() and not self.result.set_running_or_notify_cancel():
            return lambda: None
        try:
            next(self._units)
        except StopIteration as end:
            value = end.value
            return lambda: self.result.set_result(value)
        except BaseException as raised:
            error = raised
            return lambda: self.result.set_exception(error)
        return None
