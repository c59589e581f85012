"""Runs all torch work on one thread, which runs share fairly, so that the event loop is not blocked.

Work runs in units, such as a micro-batch, which are never interrupted. The next unit belongs to the run with the least
virtual time: the seconds that the run has used. A run that was idle continues at the virtual time of the other runs, so
that it cannot save up time (start-time fair queueing: Goyal, Vin and Cheng, 1996). If two runs always have work, in
units of the same length, neither is ever more than two units ahead of the other.
"""

import asyncio
import sys
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

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, on_owner: Callable[[str], None] = lambda _: None
    ) -> None:
        """`clock` returns seconds. `on_owner` is called on the thread with the owner of each unit before it starts, and
        with PLATFORM when no work is left.
        """
        self._on_owner = on_owner
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[_Task]] = {}
        """Unfinished tasks of each run that has any, in the order of their calls."""
        self._used: dict[str, float] = {}
        """Virtual time of each run in seconds. Runs that are not ahead of `_now` may be missing."""
        self._seconds: dict[str, float] = {}
        """Seconds that each owner's units took since the last `forget`."""
        self._now = 0.0
        """Virtual time at which the latest unit started, in seconds."""
        self._running: _Task | None = None
        """Task whose unit is running."""
        self._unit_began = 0.0
        """Time at which the running unit began."""
        self._in_turn = False
        self._closed = False

    async def run(self, owner: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function for the run `owner` as one unit, and return its result. Cancelling the caller does not stop
        the function.
        """

        def units() -> Units[T]:
            yield from ()
            return function(*args, **kwargs)

        result: T = await self._wait_for(_Task(owner, units(), is_step=False))
        return result

    async def run_units(self, owner: str, function: Callable[P, Units[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function, run the units that it returns on behalf of the run `owner`, and return their result.
        Cancelling the caller does not stop the units.
        """
        result: T = await self._wait_for(_Task(owner, function(*args, **kwargs), is_step=True))
        return result

    def seconds_of(self, owner: str) -> float:
        """Return the seconds that the owner's units have taken since the last `forget`. Without `forget`, the sum over
        all owners is the time that the thread was busy.
        """
        with self._lock:
            return self._seconds.get(owner, 0.0)

    def held_seconds(self, owner: str) -> float:
        """Return the seconds for which the owner's current work has waited for units of others, or 0 if the owner has
        no work.
        """
        with self._lock:
            tasks = self._waiting.get(owner)
            return tasks[0].held_seconds(self._clock()) if tasks else 0.0

    def unit_seconds(self) -> float:
        """Return the seconds for which a run's unit has been running, or 0 if none is running."""
        with self._lock:
            is_of_run = self._running is not None and self._running.owner != PLATFORM
            return self._clock() - self._unit_began if is_of_run else 0.0

    def forget(self, owner: str) -> float:
        """Reset the owner's seconds to 0, and return the previous value."""
        with self._lock:
            return self._seconds.pop(owner, 0.0)

    def finish_in_turn(self) -> None:
        """From now on, finish one step before the next instead of alternating between steps, because the process exits
        soon. Single-unit work, such as a snapshot, runs before the next unit of a step.
        """
        self._in_turn = True

    def cancel_waiting(self) -> None:
        """Cancel all tasks except the task whose unit is running."""
        with self._lock:
            waiting = [task for tasks in self._waiting.values() for task in tasks if task is not self._running]
            running = [self._running] if self._running is not None else []
            self._waiting = {task.owner: deque([task]) for task in running}
        for task in waiting:
            task.cancel()

    def cancel(self, owner: str) -> None:
        """Cancel the run's tasks. A unit that is running is completed first."""
        with self._lock:
            for task in self._waiting.get(owner, ()):
                task.is_cancelled = True

    def close(self) -> None:
        """Cancel all work without waiting for the running unit. No unit runs after that one."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
        self.cancel_waiting()

    async def _wait_for(self, task: "_Task") -> Any:
        with self._lock:
            self._used[task.owner] = max(self._used.get(task.owner, 0.0), self._now)
            tasks = self._waiting.setdefault(task.owner, deque())
            tasks.append(task)
            if tasks[0] is task:
                task.waits_since = self._clock()
        self._executor.submit(self._do_unit)
        return await asyncio.shield(asyncio.wrap_future(task.result))

    def _do_unit(self) -> None:
        with self._lock:
            if not self._waiting:  # cancelled
                return
            task = self._running = min((tasks[0] for tasks in self._waiting.values()), key=self._place)
            self._now = self._used[task.owner]
            self._unit_began = self._clock()
            task.stop_waiting(self._unit_began)
        self._on_owner(task.owner)
        started = self._clock()
        settle = task.do_unit()
        with self._lock:
            self._running = None
            ended = self._clock()
            seconds = ended - started
            self._used[task.owner] += seconds
            self._seconds[task.owner] = self._seconds.get(task.owner, 0.0) + seconds
            if settle is not None:
                self._remove_finished(task.owner)
            if task.owner in self._waiting:
                self._waiting[task.owner][0].waits_since = ended
            is_idle = not self._waiting
        if is_idle:
            self._on_owner(PLATFORM)
        if settle is not None:
            settle()
        elif self._closed:
            task.cancel()
        else:
            self._executor.submit(self._do_unit)

    def _place(self, task: "_Task") -> tuple[int, float]:
        """Return the task's sort key. The task with the lowest key runs next."""
        first = 0
        if self._in_turn:
            # The step with the most units done is the first to end.
            first = -task.units_done if task.is_step else -sys.maxsize
        return first, self._used[task.owner]

    def _remove_finished(self, owner: str) -> None:
        """Remove the run's finished task."""
        self._waiting[owner].popleft()
        if not self._waiting[owner]:
            del self._waiting[owner]
        if self._waiting:
            self._used = {o: used for o, used in self._used.items() if o in self._waiting or used > self._now}
        else:
            # Time used before all runs were idle counts no more.
            self._used.clear()


def finish(units: Units[T]) -> T:
    """Run all units and return the result."""
    while True:
        try:
            next(units)
        except StopIteration as end:
            result: T = end.value
            return result


class _Task:
    """Units of a run, and the future for their result."""

    def __init__(self, owner: str, units: Units[Any], *, is_step: bool) -> None:
        self.owner = owner
        self.is_step = is_step
        """True if the task may have several units."""
        self.result: Future[Any] = Future()
        self.units_done = 0
        self.is_cancelled = False
        """True if no further unit may start."""
        self.waits_since: float | None = None
        """Time since which the task waits for its next unit. None while one of its units is running, or while another
        task of the owner is first.
        """
        self._held = 0.0
        self._units = units

    def held_seconds(self, now: float) -> float:
        """Return the seconds for which the task, while first among its owner's tasks, has waited for its units to
        start.
        """
        return self._held if self.waits_since is None else self._held + now - self.waits_since

    def stop_waiting(self, now: float) -> None:
        """Record that a unit starts at `now`."""
        self._held, self.waits_since = self.held_seconds(now), None

    def cancel(self) -> None:
        """Make the caller's wait for the result raise CancelledError."""
        if not self.result.cancel():
            self.result.set_exception(CancelledError())

    def do_unit(self) -> Callable[[], None] | None:
        """Run the next unit. Returns None, or the function that completes the future if this was the last unit."""
        if not self.result.running() and not self.result.set_running_or_notify_cancel():
            return lambda: None
        try:
            if self.is_cancelled:
                self._units.close()
                return self.cancel
            next(self._units)
        except StopIteration as end:
            value = end.value
            return lambda: self.result.set_result(value)
        except BaseException as raised:
            error = raised
            return lambda: self.result.set_exception(error)
        self.units_done += 1
        return None
