"""Metrics and rollouts on their way to S3, behind the training loop's back.

A bounded queue and one writer: S3 that is slow or away never holds up a step, and what cannot be written is counted and
shown, not silently lost. Metrics are small files of a few dozen lines, each rewritten whole until it is full, so that a
reader sees every step within seconds although S3 cannot append. Parts sort by time. A reader merges the lines of a
step, and the later one wins: an evaluation has a line of its own, and a step that is made again after a restart writes
its line again.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import zstandard
from rlrun.artifacts.layout import RunLayout, S3Uri
from rlrun.artifacts.store import NotFound, Store, StoreError
from rlrun.schema.wire import Problem

log = logging.getLogger(__name__)

QUEUE_LENGTH = 16
LINES_PER_PART = 50
TRIES = 3
RETRY_SECONDS = 2.0


@dataclass(frozen=True)
class _Job:
    uri: S3Uri
    make: Callable[[], bytes]


class Recorder:
    """Everything this process writes to S3."""

    def __init__(self, store: Store, layout: RunLayout, *, retry_seconds: float = RETRY_SECONDS) -> None:
        self.lost = 0
        """Objects given up."""
        self.problem: Problem | None = None
        """The last write's failure, until one succeeds."""
        self._store = store
        self._layout = layout
        self._retry_seconds = retry_seconds
        self._queue: asyncio.Queue[_Job] = asyncio.Queue(QUEUE_LENGTH)
        self._began = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        self._part = 0
        self._lines: list[str] = []
        self._writer: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to write."""
        self._writer = asyncio.create_task(self._write(), name="recorder")

    def metrics(self, step: int, time: datetime, values: Mapping[str, float | Sequence[float]]) -> None:
        """One line: the step, the time, and all its numbers; a histogram is a list of them."""
        if len(self._lines) >= LINES_PER_PART:
            self._part += 1
            self._lines = []
        self._lines.append(json.dumps({"step": step, "time": time.isoformat(), **values}, allow_nan=False))
        text = "\n".join([*self._lines, ""])
        self._put(self._layout.metrics(f"part-{self._began}-{self._part:05d}"), text.encode)

    def rollouts(self, step: int, lines: list[dict[str, Any]]) -> None:
        """The rollouts of one step's batch."""

        def compressed() -> bytes:
            text = "".join(json.dumps(line, default=str) + "\n" for line in lines)
            return zstandard.compress(text.encode(), 3)

        self._put(self._layout.rollouts(step), compressed)

    def state(self, state: dict[str, Any]) -> None:
        """The orchestrator's own state, for its next process."""
        text = json.dumps(state, separators=(",", ":"))
        self._put(state_uri(self._layout), text.encode)

    async def close(self, deadline: float) -> None:
        """Writes what is left, for at most `deadline` seconds."""
        if self._writer is None:
            return
        try:
            await asyncio.wait_for(self._queue.join(), deadline)
        except TimeoutError:
            self.lost += self._queue.qsize() + 1
            log.warning("%d objects were not written to S3 in time", self.lost)
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)

    def _put(self, uri: S3Uri, make: Callable[[], bytes]) -> None:
        try:
            self._queue.put_nowait(_Job(uri, make))
        except asyncio.QueueFull:
            self.lost += 1
            log.warning("S3 is too slow: %s is not written", uri)

    async def _write(self) -> None:
        while True:
            job = await self._queue.get()
            try:
                await self._try(job)
            finally:
                self._queue.task_done()

    async def _try(self, job: _Job) -> None:
        for attempt in range(TRIES):
            try:
                await asyncio.to_thread(lambda: self._store.put_bytes(job.uri, job.make()))
                self.problem = None
                return
            except StoreError as error:
                self.problem = error.problem
                log.warning("writing %s: %s", job.uri, error)
                await asyncio.sleep(self._retry_seconds * 2**attempt)
            except Exception:
                log.exception("%s cannot be written", job.uri)
                break
        self.lost += 1


def state_uri(layout: RunLayout) -> S3Uri:
    """Where the orchestrator keeps its own state between two processes."""
    return layout.root / "orchestrator/state.json"


async def saved_state(store: Store, layout: RunLayout) -> dict[str, Any] | None:
    """The state an earlier process of this run left; None for the first. Raises StoreError."""
    try:
        data = await asyncio.to_thread(store.get_bytes, state_uri(layout))
    except NotFound:
        return None
    state = json.loads(data)
    return state if isinstance(state, dict) else None
