"""Newest lines of one folder of a run, read once for all streams that follow it."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlrun.storage.layout import S3Uri

from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.base.stored_files import StoredFiles
from rlrun_server.rest.streams.file_tail import (
    Part,
    Position,
    TailLine,
    end_of,
    lines_after,
    list_parts,
    start_after,
)

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
MAX_POLL_SECONDS = 10.0
FINISHED_POLL_SECONDS = 30.0
FAILED_POLL_SECONDS = 15.0
IDLE_SHARE = 0.05
"""The pause is this share of the time since the last new line: slow steps are polled less often."""
BUSY_FACTOR = 20.0
"""Minimum pause, as a multiple of the duration of the last read."""
MAX_KEPT = 64
"""Lines that are kept for streams, and their bytes. Streams that need earlier ones read them from S3."""
MAX_KEPT_BYTES = 64 * 1024

Wake = Callable[[], None]


class TailEvent(NamedTuple):
    """A line as data of an event."""

    end: Position
    """Position after it."""
    data: bytes | None
    """None: the line is not shown."""
    step: int | None


class FolderKind(NamedTuple):
    """Readers of the lines of a folder."""

    event: Callable[[bytes], bytes | None]
    step: Callable[[bytes], int | None]


def poll_pause(idle_seconds: float, took_seconds: float, *, is_finished: bool) -> float:
    """Return the time until the next read. Pure."""
    if is_finished:
        return FINISHED_POLL_SECONDS
    pause = min(MAX_POLL_SECONDS, max(POLL_SECONDS, idle_seconds * IDLE_SHARE))
    return max(pause, took_seconds * BUSY_FACTOR)


class FolderTail:
    """Lines of one folder, polled while a stream is subscribed."""

    def __init__(
        self,
        files: StoredFiles,
        namespace: str,
        folder: S3Uri,
        kind: FolderKind,
        is_finished: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """`namespace`: that of the run. `is_finished`: whether the run has ended, so that new lines are unlikely."""
        self._files = files
        self._namespace = namespace
        self._folder = folder
        self._kind = kind
        self._is_finished = is_finished
        self._clock = clock
        self._hurry = asyncio.Event()
        self._wakes: set[Wake] = set()
        self._task: asyncio.Task[None] | None = None
        self._begin: Position | None = None
        """Position before the first kept line. None: nothing was read yet."""
        self._end = Position()
        self._kept: deque[TailEvent] = deque()
        self._kept_bytes = 0

    @property
    def is_used(self) -> bool:
        """Return whether a stream subscribes."""
        return bool(self._wakes)

    def hurry(self) -> None:
        """Poll soon, because the run has changed."""
        self._hurry.set()

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` when there are new lines. Returns a function that ends the subscription."""
        self._wakes.add(wake)
        if self._task is None:
            self._task = asyncio.create_task(self._follow())

        def unsubscribe() -> None:
            self._wakes.discard(wake)
            if not self._wakes and self._task is not None:
                self._task.cancel()
                self._task = None

        return unsubscribe

    async def start(self, after_step: int | None) -> tuple[Position, Position]:
        """Return where a stream begins, and the end of the lines that were there. Raises RestError."""

        def read() -> tuple[Position, Position]:
            parts = self._list()
            store = self._files.store
            return start_after(store, self._folder, parts, after_step, self._kind.step), end_of(parts)

        return await self._files.run(self._namespace, read)

    async def after(self, position: Position) -> list[TailEvent]:
        """Return the first lines after a position. Raises RestError."""
        if self._begin is not None and position >= self._end:
            return []
        if self._begin is not None and position >= self._begin:
            return [event for event in self._kept if event.end > position]
        return await self._files.run(self._namespace, self._read, position)

    async def poll(self) -> None:
        """Poll for new lines. Raises RestError."""
        if self._begin is None:
            parts = await self._files.run(self._namespace, self._list)
            self._begin = self._end = end_of(parts)
            self._wake()
            return
        while True:
            events = await self._files.run(self._namespace, self._read, self._end)
            if not events:
                return
            self._keep(events)
            self._wake()

    async def _follow(self) -> None:
        last_new = self._clock()
        while True:
            began, end = self._clock(), self._end
            least = POLL_SECONDS
            try:
                await self.poll()
            except RestError:
                # It is logged, and streams get what is new later.
                least = FAILED_POLL_SECONDS
            except Exception:
                log.exception("%s cannot be followed", self._folder)
                least = FAILED_POLL_SECONDS
            now = self._clock()
            if self._end != end:
                last_new = now
            pause = poll_pause(now - last_new, now - began, is_finished=self._is_finished())
            least = max(least, (now - began) * BUSY_FACTOR)
            self._hurry.clear()
            await asyncio.sleep(least)
            if pause > least:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), pause - least)

    def _list(self) -> list[Part]:
        return list_parts(self._files.store, self._folder)

    def _read(self, position: Position) -> list[TailEvent]:
        """Read lines after a position. Runs in a thread."""
        parts = self._list()
        if end_of(parts) <= position:
            return []
        return [self._event(line) for line in lines_after(self._files.store, self._folder, parts, position)]

    def _event(self, line: TailLine) -> TailEvent:
        return TailEvent(line.end, self._kind.event(line.data), self._kind.step(line.data))

    def _keep(self, events: Sequence[TailEvent]) -> None:
        for event in events:
            self._kept.append(event)
            self._kept_bytes += len(event.data or b"")
            self._end = event.end
        while len(self._kept) > MAX_KEPT or self._kept_bytes > MAX_KEPT_BYTES:
            dropped = self._kept.popleft()
            self._kept_bytes -= len(dropped.data or b"")
            self._begin = dropped.end

    def _wake(self) -> None:
        for wake in tuple(self._wakes):
            wake()
