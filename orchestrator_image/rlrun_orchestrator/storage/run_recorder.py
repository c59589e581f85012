"""Uploads metrics, rollouts and the orchestrator's state to S3 in the background.

All objects pass through a spool on disk (`upload_spool`), so that a slow or unreachable S3 never delays a step and
costs no memory. Uploads are retried without limit, and dropped objects are counted and reported. There are two writers,
one that alternates between metrics and state, and one for rollouts, so that small important objects do not wait for
large ones.

Metrics and summaries of rollouts are small files of a few dozen lines. Each is rewritten until it is full
(`part_file`), because readers must see every step within seconds. A reader merges the lines of a step, and later lines
win: an evaluation writes its own line, and a step that is repeated after a restart writes its line again.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rlrun.protocol.problem import Problem
from rlrun.service.backoff import Backoff
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.store import Store, StoreError

from rlrun_orchestrator.storage.part_file import PartFile
from rlrun_orchestrator.storage.sample_records import StepRollouts, encode_rollouts
from rlrun_orchestrator.storage.state_files import (
    checkpoint_state_uri,
    copy_state_number,
    copy_state_uri,
    parse_object,
    read_checkpoint_state,
    read_copy_steps,
    state_uri,
)
from rlrun_orchestrator.storage.upload_spool import SpooledObject, UploadPriority, UploadSpool

log = logging.getLogger(__name__)

QUEUE_LENGTH = 256
"""Maximum number of objects that wait for the disk."""
MAX_WAITING_ROLLOUTS = 65_536
"""Maximum number of rollouts, with their tokens, that wait for the disk."""
RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0
CLOSING_RETRY_SECONDS = 1.0
"""Maximum pause in seconds while the process waits for the last uploads."""


@dataclass(frozen=True)
class _NewObject:
    uri: S3Uri
    priority: UploadPriority
    data: bytes


@dataclass(frozen=True)
class _SpoolJob:
    name: str
    make: Callable[[], Iterable[_NewObject]]
    rollouts: int = 0
    state: int = 0
    """Version number of the state."""


class RunRecorder:
    """Writes metrics, rollouts and the orchestrator's state to S3."""

    def __init__(
        self,
        store: Store,
        layout: RunLayout,
        spool: UploadSpool,
        report: Callable[[Problem | None], None] = lambda _: None,
        *,
        redact: Sequence[str] = (),
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """`report` receives the problem that prevents uploads, and None once it is resolved. `redact` lists fields of
        rollouts whose values are replaced before they are stored.
        """
        self.spool = spool
        self.state_uri = state_uri(layout, 1)
        """URI of the orchestrator's state, in this process's own file."""
        self._store = store
        self._layout = layout
        self._report = report
        self._redact = tuple(redact)
        self._retry_seconds = retry_seconds
        self._failed = 0
        """Number of objects that could not be written."""
        self._queue: asyncio.Queue[_SpoolJob] = asyncio.Queue(QUEUE_LENGTH)
        self._problems: dict[UploadPriority, Problem] = {}
        began = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        self._metric_lines, self._summary_lines = PartFile(began), PartFile(began)
        self._waiting_rollouts = 0
        """Number of rollouts in the queue."""
        self._copy_steps: list[int] = []
        """Step of the recovery copy's state in each file. Empty until the first such state is saved."""
        self._states = 0
        """Number of versions of the state so far."""
        self._newest = (0, 0)
        """Version number of the newest state in the spool, and the version number that the spool gave it."""
        self._kept = 0
        """Spool version number of the state that is in S3."""
        self._slow = False
        """True if the last wait for a state timed out."""
        small, large = asyncio.Event(), asyncio.Event()
        self._more = {UploadPriority.metrics: small, UploadPriority.state: small, UploadPriority.rollouts: large}
        self._progress = asyncio.Condition()
        """Condition that is notified after each upload and each failure."""
        self._closing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def dropped_objects(self) -> int:
        """Number of objects that were not stored."""
        return self._failed + self.spool.dropped

    @property
    def problem(self) -> Problem | None:
        """Reason why S3 currently accepts no objects, or None."""
        return next(iter(self._problems.values()), None)

    def start(self) -> None:
        """Start uploading, beginning with what an earlier process left in the spool."""
        self._tasks = [
            asyncio.create_task(self._spool_all(), name="spool"),
            asyncio.create_task(self._write(UploadPriority.metrics, UploadPriority.state), name="metrics and state"),
            asyncio.create_task(self._write(UploadPriority.rollouts), name="rollouts"),
        ]

    def metrics(self, step: int, time: datetime, values: Mapping[str, float | Sequence[float]]) -> None:
        """Write one line: the step, the time and all values. A histogram is a list of counts."""
        line = json.dumps({"step": step, "time": time.isoformat(), **values}, allow_nan=False)
        part, data = self._metric_lines.add(line)
        self._put_bytes(self._layout.metrics(part), UploadPriority.metrics, data)

    def rollouts(self, rollouts: StepRollouts) -> None:
        """Write one object with rollouts of a step, and a line that summarizes the object."""
        uri = self._layout.rollouts(rollouts.step, rollouts.use)

        # Runs in the spool's thread, one call at a time, because it takes as long as sending the batch to the trainer.
        def encode() -> Iterable[_NewObject]:
            data, summary = encode_rollouts(rollouts, self._redact)
            yield _NewObject(uri, UploadPriority.rollouts, data)
            part, lines = self._summary_lines.add(summary.model_dump_json(by_alias=True, exclude_none=True))
            yield _NewObject(self._layout.rollout_summaries(part), UploadPriority.metrics, lines)

        self._put(_SpoolJob(str(uri), encode, rollouts.count))

    def save_state(self, state: dict[str, Any]) -> None:
        """Write the orchestrator's state for its next process."""
        text = json.dumps(state, separators=(",", ":"))
        self._states += 1
        self._put_bytes(self.state_uri, UploadPriority.state, text.encode(), self._states)

    def save_checkpoint_state(self, step: int, state: dict[str, Any]) -> None:
        """Write the orchestrator's state at `step`, whose checkpoint does not contain it. A process that resumes from
        that checkpoint reads it.
        """
        text = json.dumps(state, separators=(",", ":"))
        self._put_bytes(checkpoint_state_uri(self._layout, step), UploadPriority.metrics, text.encode())

    def save_copy_state(self, state: dict[str, Any]) -> None:
        """Write the state of a step that the trainer saves as a recovery copy, for a process that resumes from the
        copy.
        """
        step, text = int(state["step"]), json.dumps(state, separators=(",", ":"))

        # Runs in the spool's thread, because the states of earlier processes are read first.
        def choose_file() -> Iterable[_NewObject]:
            if not self._copy_steps:
                self._copy_steps = read_copy_steps(self._store, self._layout, self.spool)
            number = copy_state_number(self._copy_steps, step)
            self._copy_steps[number] = step
            return [_NewObject(copy_state_uri(self._layout, number), UploadPriority.metrics, text.encode())]

        self._put(_SpoolJob(f"the state of the recovery copy of step {step}", choose_file))

    async def load_checkpoint_state(self, step: int) -> dict[str, Any] | None:
        """Return the state of `step` that `save_checkpoint_state` or `save_copy_state` wrote in this or an earlier
        process, or None if there is no state or it cannot be read.
        """
        try:
            read = await asyncio.to_thread(read_checkpoint_state, self._store, self._layout, self.spool, step)
            return parse_object(read)
        except (StoreError, ValueError) as error:
            log.warning("could not read the state of step %d: %s", step, error)
            return None

    async def wait_until_saved(self, deadline: float) -> bool:
        """Wait until the newest state is in S3, for at most `deadline` seconds and only while S3 responds. Returns True
        if it is in S3. After a timeout, calls return immediately until S3 has accepted a state.
        """
        wanted = self._states

        def recorded() -> bool:
            version, number = self._newest
            return version >= wanted and self._kept >= number

        async with self._progress:
            try:
                async with asyncio.timeout(0.0 if self._slow else deadline):
                    await self._progress.wait_for(lambda: recorded() or self.problem is not None)
            except TimeoutError:
                self._slow = True
        return recorded()

    async def close(self, deadline: float) -> None:
        """Upload the remaining objects, for at most `deadline` seconds."""
        if not self._tasks:
            return
        self._closing.set()
        try:
            async with asyncio.timeout(deadline):
                await self._queue.join()
                async with self._progress:
                    await self._progress.wait_for(lambda: len(self.spool) == 0)
        except TimeoutError:
            left = self._queue.qsize() + len(self.spool)
            self._failed += left
            log.warning("%d objects were not written to S3 in time", left)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- to the disk --------------------------------------------------------------------------------------------------

    def _put_bytes(self, uri: S3Uri, priority: UploadPriority, data: bytes, state: int = 0) -> None:
        self._put(_SpoolJob(str(uri), lambda: [_NewObject(uri, priority, data)], state=state))

    def _put(self, job: _SpoolJob) -> None:
        waiting = self._waiting_rollouts
        if self._queue.full() or (job.rollouts and waiting and waiting + job.rollouts > MAX_WAITING_ROLLOUTS):
            self._failed += 1
            count = self._queue.qsize()
            log.warning(
                "dropping %s because the disk is too slow (%d objects and %d rollouts are waiting)",
                job.name,
                count,
                waiting,
            )
            return
        self._waiting_rollouts += job.rollouts
        self._queue.put_nowait(job)

    async def _spool_all(self) -> None:
        while True:
            job = await self._queue.get()
            try:
                for priority, number in await asyncio.to_thread(self._spool_one, job):
                    if priority is UploadPriority.state:
                        self._newest = job.state, number
                    self._more[priority].set()
            except Exception:
                self._failed += 1
                log.exception("dropping %s: it could not be spooled", job.name)
            finally:
                self._waiting_rollouts -= job.rollouts
                self._queue.task_done()
            await self._notify()

    def _spool_one(self, job: _SpoolJob) -> list[tuple[UploadPriority, int]]:
        return [(new.priority, self.spool.enqueue(new.uri, new.priority, new.data)) for new in job.make()]

    # --- to S3 --------------------------------------------------------------------------------------------------------

    async def _write(self, *priorities: UploadPriority) -> None:
        backoff = Backoff(first=self._retry_seconds, longest=LONGEST_RETRY_SECONDS)
        last: UploadPriority | None = None
        while True:
            waiting = self._next(priorities, last)
            if waiting is None:
                more = self._more[priorities[0]]
                more.clear()
                await more.wait()
                continue
            try:
                await self._write_one(waiting)
                backoff.record_success()
                self._report_problem(priorities[0], None)
                last = waiting.priority
            except StoreError as error:
                log.warning("could not upload %s: %s", waiting.uri, error)
                self._report_problem(priorities[0], error.problem)
                backoff.record_failure(time.monotonic())
                await self._notify()
                await self._pause(backoff.pause)
            except Exception:
                self._failed += 1
                log.exception("dropping %s: it could not be uploaded", waiting.uri)
                self.spool.mark_uploaded(waiting)
            await self._notify()

    def _next(self, priorities: Sequence[UploadPriority], last: UploadPriority | None) -> SpooledObject | None:
        candidates = [waiting for priority in priorities if (waiting := self.spool.next(priority)) is not None]
        # Upload metrics before the state that refers to them, and otherwise alternate, so that neither starves.
        return min(candidates, key=lambda w: w.turn if last is UploadPriority.metrics else w.priority, default=None)

    async def _write_one(self, waiting: SpooledObject) -> None:
        def copy() -> bool:
            data = self.spool.read(waiting)
            if data is None:
                return False
            self._store.put_bytes(waiting.uri, data)
            self.spool.mark_uploaded(waiting)
            return True

        if await asyncio.to_thread(copy) and waiting.priority is UploadPriority.state:
            self._kept, self._slow = max(self._kept, waiting.version), False

    async def _pause(self, seconds: float) -> None:
        if self._closing.is_set():
            await asyncio.sleep(min(seconds, CLOSING_RETRY_SECONDS))
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    async def _notify(self) -> None:
        async with self._progress:
            self._progress.notify_all()

    def _report_problem(self, priority: UploadPriority, problem: Problem | None) -> None:
        if problem is not None:
            waiting = f"{len(self.spool)} ({self.spool.bytes} bytes)"
            message = f"{problem.message.rstrip('.')}. Training continues. Objects on the orchestrator's disk whose "
            message += f"upload is retried: {waiting}. Repair S3 or the network to it"
            if self.dropped_objects:
                message += f". Dropped objects: {self.dropped_objects}, the oldest rollouts first"
            self._problems[priority] = Problem(reason=problem.reason, message=message[:1000])
        elif self._problems.pop(priority, None) is None:
            return
        self._report(self.problem)
