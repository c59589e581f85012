"""Background uploads of one session: a short queue, one at a time, repeated until S3 has them.

The snapshot was taken before a job comes here, so training goes on meanwhile, also while S3 is away. The queue is
bounded, because each job holds its files on disk (in memory without a scratch folder), and keeps what matters: a newer
checkpoint takes the place of an older one that still waits, and a job is tried for as long as its session lives.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from rlrun.artifacts.layout import S3Uri, step_of
from rlrun.artifacts.manifest import ArtifactKind
from rlrun.artifacts.store import Store, StoreError
from rlrun.schema.wire import Problem, SessionSpec
from rlrun.service.errors import ProblemError

from rlrun_trainer.files import Files, discard, size_of, source_of
from rlrun_trainer.problems import LATER
from rlrun_trainer.publish import adapter_details, manifest_facts

log = logging.getLogger(__name__)

FIRST_WAIT = 1.0
LONGEST_WAIT = 60.0
LEAVING_WAIT = 1.0
"""Between two tries of a process that is about to end."""
OWN_TRIES = 3
"""After errors that are not S3's: nothing that will pass."""


@dataclass(frozen=True, eq=False)
class Job:
    """One artifact to be. The files are the queue's from here on."""

    kind: ArtifactKind
    step: int
    uri: S3Uri
    files: Files
    reward: float | None
    size: int = 0
    """Bytes of the files."""


def wait_after(failures: int) -> float:
    """Seconds to wait after so many failures in a row: 1, 2, 4, ... 60."""
    return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(failures - 1, 30))


def completed_steps(store: Store, folder: S3Uri, known: frozenset[int] = frozenset()) -> list[int]:
    """Steps below `folder` with a manifest, oldest first; of those in `known` only the folder is looked for."""
    steps = []
    for name in store.list_folders(folder):
        try:
            step = step_of(name)
        except ValueError:
            continue
        if step in known or store.read_manifest(folder / name) is not None:
            steps.append(step)
    return sorted(steps)


@dataclass
class Uploads:
    """The queue and what has become of it. Lives on the event loop; S3 is called from threads."""

    store: Store
    spec: SessionSpec
    limit: int
    """Jobs at a time, the one under way included."""
    limit_bytes: int
    """Of their files; a single job may have more."""
    tries: int
    """Of a job whose session is closed."""
    wait: Callable[[int], float] = wait_after
    completed: dict[ArtifactKind, list[int]] = field(default_factory=dict)
    problem: Problem | None = None
    _jobs: list[Job] = field(default_factory=list)
    """The one under way first."""
    _sizes: dict[ArtifactKind, int] = field(default_factory=dict)
    """Of the last job of each kind."""
    _closed: bool = False
    _leaving: bool = False
    _again: asyncio.Event = field(default_factory=asyncio.Event)
    _worker: asyncio.Task[None] | None = None

    @property
    def pending(self) -> int:
        """Jobs queued or under way."""
        return len(self._jobs)

    def has(self, kind: ArtifactKind, step: int) -> bool:
        """Whether that artifact is on its way."""
        return any(job.kind == kind and job.step == step for job in self._jobs)

    def check_room(self, kind: ArtifactKind) -> None:
        """Raises ProblemError (UploadsBehind) when there is no room for one more: ask before taking a snapshot."""
        staying = [job for job in self._jobs if job not in self._displaced(kind)]
        size = self._sizes.get(kind, 0)
        room = self.limit_bytes - sum(job.size for job in staying)
        if len(staying) < self.limit and (not staying or size <= room):
            return
        because = f" (last failure: {self.problem.message})" if self.problem else ""
        raise ProblemError.of(
            LATER,
            "UploadsBehind",
            f"{len(staying)} uploads of this run with {sum(job.size for job in staying)} bytes still wait{because}: "
            f"there is no room for the {kind}. If S3 is well, raise the interval",
        )

    def submit(self, job: Job, first: bool = False) -> None:
        """Queues the job and returns at once; `first` is before all that wait."""
        job = Job(job.kind, job.step, job.uri, job.files, job.reward, size_of(job.files))
        for older in self._displaced(job.kind):
            log.info("%s of step %d gives way to that of step %d", older.kind, older.step, job.step)
            self._jobs.remove(older)
            discard(older.files)
        self._jobs.insert(1 if first else len(self._jobs), job)
        self._sizes[job.kind] = job.size
        # A rewound run makes the same step again: until then, what is there is about to be replaced.
        self.completed[job.kind] = [step for step in self.completed.get(job.kind, []) if step != job.step]
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())

    def try_again(self) -> None:
        """S3 may be back: nobody waits any longer."""
        self._again.set()

    def close(self) -> None:
        """The session is no more: what is left is tried so many times and not for ever."""
        self._closed = True
        self._again.set()

    async def drain(self, seconds: float) -> int:
        """Waits up to so long for the queue to empty, with short pauses; returns how many jobs are left."""
        self._leaving = True
        self._again.set()
        if self._worker is not None:
            await asyncio.wait({self._worker}, timeout=max(0.0, seconds))
        self._leaving = False
        return self.pending

    def _displaced(self, kind: ArtifactKind) -> list[Job]:
        """Whose place a new job takes: only the newest of the checkpoints that wait is worth anything."""
        return [job for job in self._jobs[1:] if job.kind == kind == ArtifactKind.checkpoint]

    async def _work(self) -> None:
        while self._jobs:
            job = self._jobs[0]
            try:
                await self._upload(job)
            finally:
                self._jobs.remove(job)
                discard(job.files)

    async def _upload(self, job: Job) -> None:
        failures = own = 0
        while True:
            failures += 1
            try:
                self.completed[job.kind] = await asyncio.to_thread(self._write, job)
            except StoreError as error:
                self.problem = Problem(
                    reason=error.problem.reason,
                    message=f"{job.kind} of step {job.step}, try {failures}: {error.problem.message}",
                )
            except Exception as error:
                own += 1
                log.exception("uploading %s", job.uri)
                self.problem = Problem(reason="UploadFailed", message=f"{job.kind} of step {job.step}: {error}")
            else:
                self.problem = None
                log.info("%s of step %d is complete: %s", job.kind, job.step, job.uri)
                return
            log.warning("%s: %s", self.problem.reason, self.problem.message)
            if own >= OWN_TRIES or (self._closed and failures >= self.tries):
                return
            self._again.clear()
            pause = min(self.wait(failures), LEAVING_WAIT) if self._leaving else self.wait(failures)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._again.wait()

    def _write(self, job: Job) -> list[int]:
        self.store.upload_artifact(
            source_of(job.files),
            job.uri,
            job.kind,
            **manifest_facts(self.spec),
            step=job.step,
            policy_version=job.step,
            details=adapter_details(self.spec, job.step, job.reward),
        )
        folder = S3Uri(job.uri.bucket, job.uri.key.rsplit("/", 1)[0])
        known = frozenset(self.completed.get(job.kind, [])) | {job.step}
        try:
            # Asked anew, because retention takes old ones away meanwhile.
            return completed_steps(self.store, folder, known)
        except StoreError as error:
            log.warning("%s is complete, and what is beside it is not known: %s", job.uri, error)
            return sorted(known)
