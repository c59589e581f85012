"""Background uploads of one session: a short queue, one at a time, repeated until S3 has them.

The snapshot was taken before a job comes here, so training goes on meanwhile. The queue is short on purpose: each job
holds its files in memory or on disk, and an S3 that is slower than the checkpoint interval is something to hear about.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from rlrun.artifacts.layout import S3Uri, step_of
from rlrun.artifacts.manifest import ArtifactKind
from rlrun.artifacts.store import Store, StoreError
from rlrun.schema.wire import Problem, SessionSpec

from rlrun_trainer.files import Files, discard, source_of
from rlrun_trainer.problems import LATER, Refused
from rlrun_trainer.publish import adapter_details, manifest_facts

log = logging.getLogger(__name__)

FIRST_WAIT = 1.0
LONGEST_WAIT = 60.0


@dataclass(frozen=True)
class Job:
    """One artifact to be."""

    kind: ArtifactKind
    step: int
    uri: S3Uri
    files: Files
    reward: float | None


def wait_after(failures: int) -> float:
    """Seconds to wait after so many failures in a row: 1, 2, 4, ... 60."""
    return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (failures - 1))


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
    tries: int
    wait: Callable[[int], float] = wait_after
    completed: dict[ArtifactKind, list[int]] = field(default_factory=dict)
    problem: Problem | None = None
    _waiting: list[Job] = field(default_factory=list)
    _worker: asyncio.Task[None] | None = None

    @property
    def pending(self) -> int:
        """Jobs queued or under way."""
        return len(self._waiting)

    def has(self, kind: ArtifactKind, step: int) -> bool:
        """Whether that artifact is on its way."""
        return any(job.kind == kind and job.step == step for job in self._waiting)

    def check_room(self) -> None:
        """Raises Refused (UploadsBehind) when the queue is full: ask before taking a snapshot."""
        if len(self._waiting) >= self.limit:
            because = f" (last failure: {self.problem.message})" if self.problem else ""
            raise Refused(
                LATER,
                "UploadsBehind",
                f"{len(self._waiting)} uploads of this run still wait{because}: try again, or raise the interval",
            )

    def submit(self, job: Job) -> None:
        """Queues the job and returns at once. Raises Refused when the queue is full."""
        self.check_room()
        self._waiting.append(job)
        # A rewound run makes the same step again: until then, what is there is about to be replaced.
        self.completed[job.kind] = [step for step in self.completed.get(job.kind, []) if step != job.step]
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())

    async def drain(self, deadline: float) -> int:
        """Waits up to `deadline` seconds for the queue to empty; returns how many jobs are left."""
        if self._worker is not None:
            await asyncio.wait({self._worker}, timeout=max(0.0, deadline))
        return self.pending

    async def _work(self) -> None:
        while self._waiting:
            job = self._waiting[0]
            try:
                await self._upload(job)
            finally:
                self._waiting.remove(job)
                discard(job.files)

    async def _upload(self, job: Job) -> None:
        for failures in range(1, self.tries + 1):
            try:
                self.completed[job.kind] = await asyncio.to_thread(self._write, job)
            except StoreError as error:
                self.problem = Problem(
                    reason=error.problem.reason,
                    message=f"{job.kind} of step {job.step}, try {failures} of {self.tries}: {error.problem.message}",
                )
            except Exception as error:
                log.exception("uploading %s", job.uri)
                self.problem = Problem(reason="UploadFailed", message=f"{job.kind} of step {job.step}: {error}")
            else:
                self.problem = None
                log.info("%s of step %d is complete: %s", job.kind, job.step, job.uri)
                return
            log.warning("%s: %s", self.problem.reason, self.problem.message)
            if failures < self.tries:
                await asyncio.sleep(self.wait(failures))

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
        known = frozenset(self.completed.get(job.kind, []))
        # Asked anew, because retention takes old ones away meanwhile.
        return completed_steps(self.store, folder, known | {job.step})
