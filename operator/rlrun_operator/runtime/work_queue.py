"""Work queue between events and reconciles, with the guarantees of client-go's work queue and fairness between
namespaces.

A key is in the queue at most once and is processed by one worker at a time: a key added during its processing is queued
again afterwards. A failed key is retried with exponential back-off. A key can be scheduled for a later time; the
earliest time takes precedence.

Workers serve the namespaces round-robin, so that a namespace with a thousand keys delays a key of another namespace by
one reconcile, not by a thousand. Keys of a namespace are processed in order of arrival, to which the priority adds
seconds: a crash comes before the progress of a thousand runs, and no key starves. A key queued for progress only is
upgraded when it is queued for another reason. A namespace has at most `namespace_limit` workers at a time, so that
reconciles that hang, for example in a slow webhook, do not block other namespaces.
"""

import asyncio
import heapq
import itertools
import logging
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Generic, Protocol, TypeVar

from rlrun.kube.errors import ApiError
from rlrun.storage.store import StoreError

from rlrun_operator.runtime.metrics import ERRORS, RECONCILE_SECONDS


class NamespacedKey(Protocol):
    """Hashable key of an object in a namespace."""

    @property
    def namespace(self) -> str:
        """Namespace of the tenant."""

    def __hash__(self) -> int:
        """Return the hash of the key."""


K = TypeVar("K", bound=NamespacedKey)
_Place = tuple[float, int]
"""Sort key of a queued key: its arrival plus the seconds of its priority, and a unique number."""


class Priority(Enum):
    """Priority of a key, as seconds that are added to the time of its arrival."""

    EVENT = 0.0
    PROGRESS = 15.0
    """Only the progress of a training run has changed, so only the progress is written."""
    ROUTINE = 30.0
    """Numbers of a training run other than its progress have changed, or a scheduled reconcile is due."""
    RESYNC = 60.0
    """Periodic resync of all runs, in case an event was missed."""


def namespace_limit(workers: int) -> int:
    """Return the maximum number of workers of one namespace: half of all workers, at least one."""
    return max(1, workers // 2)


class WorkQueue(Generic[K]):
    """De-duplicating queue of keys. Not thread-safe: use from one event loop only.

    `namespace_limit` is the number of keys of one namespace that may be processed at a time, or None for no limit.
    """

    def __init__(
        self,
        *,
        base_delay: float = 0.5,
        max_delay: float = 60.0,
        namespace_limit: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._base_delay = base_delay
        self._max_delay = max_delay
        self._limit = namespace_limit
        self._clock = clock
        self._ready: OrderedDict[str, list[tuple[_Place, K]]] = OrderedDict()
        """Heaps of waiting keys by namespace, the next namespace first. A key that was added again with a higher
        priority is in its heap twice; the entry that `_queued` contains is valid.
        """
        self._queued: dict[K, _Place] = {}
        """Sort key of each queued key. A queued key waits for a worker, or for the end of its current processing."""
        self._progress: set[K] = set()
        """Queued keys that were added only with priority PROGRESS."""
        self._processing: dict[K, bool] = {}
        """Keys that are being processed, and whether only their progress is written."""
        self._busy: Counter[str] = Counter()
        """Number of keys that are being processed, by namespace."""
        self._failures: dict[K, int] = {}
        self._due: dict[K, tuple[float, float]] = {}
        """For each scheduled key, the time at which to queue it, and the arrival time that determines its order."""
        self._heap: list[tuple[float, int, K]] = []
        self._ids = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """Return the number of keys that wait for a worker, excluding keys that are scheduled for later."""
        return len(self._queued) - sum(key in self._queued for key in self._processing)

    @property
    def delayed(self) -> int:
        """Number of keys scheduled for later."""
        return len(self._due)

    def add(self, key: K, priority: Priority = Priority.EVENT) -> None:
        """Queue the key for the next free worker. Adding with PROGRESS leaves an already scheduled time unchanged."""
        since = self._clock() + priority.value
        if priority is not Priority.PROGRESS:
            self._add(key, since)
        elif key not in self._queued:
            # A queued reconcile writes the progress as well.
            self._progress.add(key)
            self._enqueue(key, since)

    def add_after(self, key: K, seconds: float, priority: Priority = Priority.EVENT) -> None:
        """Queue the key after `seconds`, unless it is already scheduled for an earlier time. The key keeps the higher
        of its old and new priority.
        """
        if seconds <= 0:
            self.add(key, priority)
            return
        when = self._clock() + seconds
        earliest, since = self._due.get(key, (math.inf, math.inf))
        self._due[key] = (min(when, earliest), min(when + priority.value, since))
        if when < earliest:
            heapq.heappush(self._heap, (when, next(self._ids), key))
            self._arm()

    def retry(self, key: K) -> float:
        """Schedule a retry after the key's backoff. Returns the backoff in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(self._max_delay, self._base_delay * 2 ** min(failures, 30))
        self.add_after(key, delay)
        return float(delay)

    def forget(self, key: K) -> None:
        """Reset the key's backoff after a success."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """Wait for the next key and return it. The caller must call `finish` with it."""
        while (key := self._take()) is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # Pass the wake-up of the cancelled waiter on to another one.
                if waiter.done() and not waiter.cancelled():
                    self._wake()
                raise
        return key

    def has_only_progress(self, key: K) -> bool:
        """Return whether the key, which is being processed, was added only with priority PROGRESS."""
        return self._processing[key]

    def finish(self, key: K) -> None:
        """Mark the key as processed, after success or failure. A key that was added in the meantime becomes ready."""
        self._processing.pop(key, None)
        self._busy[key.namespace] -= 1
        if not self._busy[key.namespace]:
            del self._busy[key.namespace]
        if key in self._queued:
            self._make_ready(key)
        elif key.namespace in self._ready:
            # The namespace may have been at its limit, so wake a waiting worker.
            self._wake()

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _add(self, key: K, since: float) -> None:
        """Queue the key. Its arrival time is the earlier of `since` and the arrival time with which it was
        scheduled.
        """
        self._progress.discard(key)
        _, scheduled = self._due.pop(key, (since, since))
        self._enqueue(key, min(since, scheduled))

    def _enqueue(self, key: K, since: float) -> None:
        place = (since, next(self._ids))
        if key in self._queued and self._queued[key] <= place:
            return
        self._queued[key] = place
        if key not in self._processing:
            self._make_ready(key)

    def _make_ready(self, key: K) -> None:
        heapq.heappush(self._ready.setdefault(key.namespace, []), (self._queued[key], key))
        self._wake()

    def _take(self) -> K | None:
        """Return the first key of the next namespace, or None if no key may be processed now."""
        # Only namespaces at their limit are skipped. They are few, because each occupies workers.
        for namespace, waiting in self._ready.items():
            if self._limit is not None and self._busy[namespace] >= self._limit:
                continue
            _, key = heapq.heappop(waiting)
            del self._queued[key]
            while waiting and self._queued.get(waiting[0][1]) != waiting[0][0]:
                heapq.heappop(waiting)
            if waiting:
                self._ready.move_to_end(namespace)
            else:
                del self._ready[namespace]
            self._processing[key] = key in self._progress
            self._progress.discard(key)
            self._busy[namespace] += 1
            return key
        return None

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._heap and not self._is_due(self._heap[0]):
            heapq.heappop(self._heap)
        if self._heap:
            seconds = max(0.0, self._heap[0][0] - self._clock())
            self._timer = asyncio.get_running_loop().call_later(seconds, self._release)

    def _release(self) -> None:
        now = self._clock()
        while self._heap and self._heap[0][0] <= now + 1e-3:
            entry = heapq.heappop(self._heap)
            if self._is_due(entry):
                self._add(entry[2], self._due[entry[2]][1])
        self._arm()

    def _is_due(self, entry: tuple[float, int, K]) -> bool:
        """Return whether the heap entry still matches the time for which its key is scheduled."""
        when, _, key = entry
        return key in self._due and self._due[key][0] == when


log = logging.getLogger(__name__)

RECONCILE_DEADLINE = 180.0


async def work(
    queue: WorkQueue[K],
    reconcile: Callable[[K], Awaitable[float | None]],
    write_progress: Callable[[K], Awaitable[float | None]] | None = None,
) -> None:
    """Process keys until cancelled.

    `reconcile` and `write_progress` return the seconds until the next reconcile, or None. `write_progress` may be None
    if no key is queued for progress only.
    """
    while True:
        key = await queue.get()
        only_progress = write_progress is not None and queue.has_only_progress(key)
        started = time.monotonic()
        try:
            # Not `wait_for`: in Python 3.11 it loses a cancellation that arrives as the reconcile ends.
            async with asyncio.timeout(RECONCILE_DEADLINE):
                again = await (write_progress(key) if write_progress and only_progress else reconcile(key))
        except asyncio.CancelledError:
            queue.finish(key)
            raise
        except Exception as error:
            reason = error_reason(error)
            ERRORS.labels(reason).inc()
            delay = queue.retry(key)
            expected = isinstance(error, ApiError | StoreError | TimeoutError)
            log.log(
                logging.WARNING if expected else logging.ERROR,
                "%s: reconcile failed, retrying in %.1f s: %s",
                key,
                delay,
                error or reason,
                exc_info=not expected,
            )
        else:
            if not only_progress:
                queue.forget(key)
            if again is not None:
                queue.add_after(key, again, Priority.ROUTINE)
        finally:
            if not only_progress:
                RECONCILE_SECONDS.observe(time.monotonic() - started)
        queue.finish(key)


def error_reason(error: Exception) -> str:
    """Return the value of the metric label `reason` for the error, one of a few fixed values."""
    if isinstance(error, ApiError):
        return f"Api{error.reason}"
    if isinstance(error, StoreError):
        return error.reason
    return type(error).__name__
