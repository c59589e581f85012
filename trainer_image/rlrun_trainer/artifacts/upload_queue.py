"""Background uploads of one session: a bounded queue, one upload at a time, with retries.

A job contains a complete snapshot, so training continues during the upload, even while S3 is unreachable. The queue is
bounded, because each job keeps its files on disk (or in memory, if there is no scratch folder). A newer checkpoint
replaces an older checkpoint that still waits, unless a client's program has named the older one. After errors from S3,
a job is retried as long as its session is open.

Recovery copies are not for users and never take capacity from users' artifacts: the queue has at most one copy and
uploads it last. A newer checkpoint replaces the copy, and the copy is dropped if its upload fails while another job
waits.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlrun.constants import LATER, Reason
from rlrun.protocol.problem import Problem
from rlrun.protocol.trainer import SessionSpec
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import S3Uri, step_of
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun.storage.store import ArtifactExists, Corrupt, Store, StoreError

from rlrun_trainer.artifacts.artifact_files import Files, discard, size_of, source_of
from rlrun_trainer.artifacts.policy_publisher import adapter_details, manifest_facts
from rlrun_trainer.artifacts.recovery_copies import RecoveryCopies

log = logging.getLogger(__name__)

FIRST_WAIT = 1.0
LONGEST_WAIT = 60.0
SHUTDOWN_WAIT_SECONDS = 1.0
"""Maximum number of seconds between attempts while the process shuts down."""
OWN_TRIES = 3
"""Maximum number of attempts after errors that do not come from S3, because such errors usually repeat."""


NAME = "name"
"""Key in the manifest's details for the name that a client's program gave the artifact."""


@dataclass(frozen=True)
class SavedName:
    """Name that a client's program gave an artifact. No newer checkpoint replaces it in the queue."""

    details: Mapping[str, Any]
    """Details in the manifest that name the artifact."""
    record: Callable[[Manifest], None]
    """Function that records the name. Called in a thread, with the artifact's manifest, once the artifact is complete
    in S3. May raise StoreError.
    """
    on_end: Callable[[bool], None]
    """Callback at the end of the upload. Its argument is True if the artifact is complete and its name is recorded."""


@dataclass(frozen=True, eq=False)
class UploadJob:
    """Upload of one artifact. The queue owns the files."""

    kind: ArtifactKind
    step: int
    uri: S3Uri
    files: Files
    reward: float | None
    snapshot_seconds: float = 0.0
    """Seconds that the snapshot took."""
    size: int = 0
    """Size of the files in bytes."""
    named: SavedName | None = None
    """Name of the artifact, if it has one."""


def wait_after(failures: int) -> float:
    """Return the seconds to wait after consecutive failures: 1, 2, 4, ... 60."""
    return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(failures - 1, 30))


def completed_steps(store: Store, folder: S3Uri, first: int, known: frozenset[int] = frozenset()) -> list[int]:
    """Return the steps of the artifacts below `folder` that are not before `first` and have a readable manifest, oldest
    first.

    Manifests of earlier steps are not read, because a run may have thousands of them. Steps in `known` count without
    reading their manifests again.
    """
    steps = []
    for name in store.list_folders(folder):
        try:
            step = step_of(name)
            if step < first:
                continue
            if step in known or store.read_manifest(folder / name) is not None:
                steps.append(step)
        except ValueError:
            continue
        except Corrupt as error:
            log.warning("%s", error)
    return sorted(steps)


@dataclass
class UploadQueue:
    """Queue of uploads, with their results. Runs on the event loop and calls S3 from threads."""

    store: Store
    spec: SessionSpec
    limit: int
    """Maximum number of jobs, including the running one, but not recovery copies."""
    limit_bytes: int
    """Maximum total size in bytes of the files of the jobs that `limit` counts. A single job may exceed it."""
    tries: int
    """Number of failed attempts after which a job is given up if the session is closed."""
    first_step: int = 0
    """Step at which the session started. Artifacts of earlier steps are not in `completed`."""
    usable_checkpoint: int = 0
    """Step of the newest checkpoint that this session uploaded or resumed from. Other checkpoints may lack files, so
    recovery copies must not be deleted because of them.
    """
    copies: RecoveryCopies | None = None
    """Recovery copies to prune after a copy or checkpoint is complete, or None to keep all."""
    wait: Callable[[int], float] = wait_after
    completed: dict[ArtifactKind, list[int]] = field(default_factory=dict)
    """Steps of complete artifacts, oldest first. Recovery copies are included only if this session made or started from
    them.
    """
    problem: Problem | None = None
    clock: Callable[[], float] = time.monotonic
    uploaded: int = 0
    """Number of users' artifacts that this queue has uploaded."""
    checkpoint_seconds: float | None = None
    """Seconds that the newest complete checkpoint took: snapshot and upload, excluding failed attempts."""
    _jobs: list[UploadJob] = field(default_factory=list)
    """Jobs in order; the first one is running."""
    _sizes: dict[ArtifactKind, int] = field(default_factory=dict)
    """Size of the last job of each kind."""
    _closed: bool = False
    _leaving: bool = False
    _again: asyncio.Event = field(default_factory=asyncio.Event)
    _attempted: asyncio.Event = field(default_factory=asyncio.Event)
    """Event that is set after each attempt for a job."""
    _worker: asyncio.Task[None] | None = None

    @property
    def pending(self) -> int:
        """Number of queued and running jobs."""
        return len(self._jobs)

    @property
    def pending_for_users(self) -> int:
        """Number of queued and running jobs, excluding recovery copies."""
        return sum(job.kind is not ArtifactKind.recovery for job in self._jobs)

    def has(self, kind: ArtifactKind, step: int) -> bool:
        """Return True if the artifact is queued or being uploaded."""
        return any(job.kind == kind and job.step == step for job in self._jobs)

    def check_capacity(self, kind: ArtifactKind) -> None:
        """Raise ProblemError (UploadsBehind) if the queue has no capacity for another job. Called before a snapshot."""
        staying = self._staying_jobs(kind)
        if self._fits(kind, staying):
            return
        because = f" (last failure: {self.problem.message})" if self.problem else ""
        raise ProblemError.of(
            LATER,
            Reason.UPLOADS_BEHIND,
            f"The run's upload queue has no room: {len(staying)} of {self.limit} uploads and "
            f"{sum(job.size for job in staying)} of {self.limit_bytes} bytes are pending{because}. If S3 is healthy, "
            "save checkpoints and adapters less often.",
        )

    async def wait_for_capacity(self, kind: ArtifactKind, seconds: float) -> None:
        """Wait until the queue has capacity for another job. Raises ProblemError as `check_capacity` does if there is
        none after `seconds`, or as soon as uploads fail.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.problem is None and not self._fits(kind, self._staying_jobs(kind)):
                    self._attempted.clear()
                    await self._attempted.wait()
        self.check_capacity(kind)

    def has_capacity_for_copy(self) -> bool:
        """Return True if a recovery copy may be submitted. Called before its snapshot."""
        is_pending = len(self._jobs) > self.pending_for_users
        return not is_pending and self._fits(ArtifactKind.recovery, self._jobs)

    def submit(self, job: UploadJob, first: bool = False) -> None:
        """Add the job and return immediately. If `first` is True, the job is put before all waiting jobs."""
        job = replace(job, size=size_of(job.files))
        for older in self._displaced_jobs(job.kind):
            log.info("Dropping %s of step %d in favor of step %d", older.kind, older.step, job.step)
            self._jobs.remove(older)
            discard(older.files)
        # A waiting recovery copy stays the last.
        end = len(self._jobs) - any(other.kind is ArtifactKind.recovery for other in self._jobs[1:])
        self._jobs.insert(1 if first else end, job)
        if self._jobs[0].kind is ArtifactKind.recovery:
            self._again.set()
        self._sizes[job.kind] = job.size
        # A rewound run repeats a step. Whether its artifact exists is known only after the upload.
        self.completed[job.kind] = [step for step in self.completed.get(job.kind, []) if step != job.step]
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())

    def try_again(self) -> None:
        """End the pause before the next attempt, because S3 is reachable again."""
        self._again.set()

    def close(self) -> None:
        """Mark the session as closed, which limits the attempts for remaining jobs."""
        self._closed = True
        self._again.set()

    async def drain(self, seconds: float) -> int:
        """Wait up to `seconds` for the queue to empty, with short pauses. Returns the number of remaining jobs."""
        self._leaving = True
        self._again.set()
        if self._worker is not None:
            await asyncio.wait({self._worker}, timeout=max(0.0, seconds))
        self._leaving = False
        return self.pending

    def _displaced_jobs(self, kind: ArtifactKind) -> list[UploadJob]:
        """Return the waiting jobs that a new job of this kind replaces, because only the newest checkpoint is
        needed.
        """
        replaced = {ArtifactKind.checkpoint, ArtifactKind.recovery} if kind is ArtifactKind.checkpoint else set()
        return [job for job in self._jobs[1:] if job.kind in replaced and job.named is None]

    def _staying_jobs(self, kind: ArtifactKind) -> list[UploadJob]:
        """Return the users' jobs that would remain after adding a job of this kind. These count toward the limits."""
        displaced = self._displaced_jobs(kind)
        return [job for job in self._jobs if job not in displaced and job.kind is not ArtifactKind.recovery]

    def _fits(self, kind: ArtifactKind, staying: Sequence[UploadJob]) -> bool:
        free = self.limit_bytes - sum(job.size for job in staying)
        return len(staying) < self.limit and (not staying or self._sizes.get(kind, 0) <= free)

    def _is_dropped(self, job: UploadJob) -> bool:
        """Return True if the job is a recovery copy that must not be tried again."""
        return job.kind is ArtifactKind.recovery and (self._closed or len(self._jobs) > 1)

    async def _work(self) -> None:
        while self._jobs:
            job = self._jobs[0]
            is_complete = False
            try:
                is_complete = await self._upload(job)
            finally:
                self._jobs.remove(job)
                discard(job.files)
                self._attempted.set()
                if job.named is not None:
                    job.named.on_end(is_complete)

    async def _upload(self, job: UploadJob) -> bool:
        """Upload with retries. Returns True if the artifact is complete."""
        failures = own = 0
        failed = f"Upload of the {job.kind} of step {job.step} failed"
        is_copy = job.kind is ArtifactKind.recovery
        while not (failures and self._is_dropped(job)):
            failures += 1
            started = self.clock()
            try:
                found = await asyncio.to_thread(self._write, job)
                waiting = {other.step for other in self._jobs if other is not job and other.kind == job.kind}
                self.completed[job.kind] = [step for step in found if step not in waiting]
            except ArtifactExists:  # under another name
                return False
            except StoreError as error:
                message = f"{failed} (attempt {failures}): {error.problem.message}"
                problem = Problem(reason=error.problem.reason, message=message)
            except Exception as error:
                own += 1
                log.exception("Could not upload %s", job.uri)
                problem = Problem(reason=Reason.UPLOAD_FAILED, message=f"{failed}: {error}")
            else:
                self.problem = self.problem if is_copy else None
                if job.kind == ArtifactKind.checkpoint:
                    self.checkpoint_seconds = job.snapshot_seconds + self.clock() - started
                log.info("%s of step %d is complete: %s", job.kind, job.step, job.uri)
                self.uploaded += not is_copy
                await self._prune_copies(job.kind)
                return True
            self.problem = self.problem if is_copy else problem
            self._attempted.set()
            log.warning("%s: %s", problem.reason, problem.message)
            if own >= OWN_TRIES or (self._closed and failures >= self.tries) or self._is_dropped(job):
                return False
            self._again.clear()
            pause = min(self.wait(failures), SHUTDOWN_WAIT_SECONDS) if self._leaving else self.wait(failures)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._again.wait()
        return False

    def _named_manifest(self, uri: S3Uri, named: SavedName) -> Manifest | None:
        """Return the artifact's manifest, or None if the artifact is incomplete or has another name."""
        manifest = self.store.read_manifest(uri)
        return manifest if manifest is not None and manifest.details.get(NAME) == named.details.get(NAME) else None

    async def _prune_copies(self, completed: ArtifactKind) -> None:
        if self.copies is None or completed not in (ArtifactKind.checkpoint, ArtifactKind.recovery):
            return
        complete = sorted(self.completed.get(ArtifactKind.recovery, []))
        try:
            await asyncio.to_thread(self.copies.prune, complete, self.usable_checkpoint)
        except Exception:
            log.exception("Could not delete old recovery copies")

    def _write(self, job: UploadJob) -> list[int]:
        known = frozenset(self.completed.get(job.kind, []))
        is_copy = job.kind is ArtifactKind.recovery
        manifest: Manifest | None = None
        try:
            manifest = self.store.upload_artifact(
                source_of(job.files),
                job.uri,
                job.kind,
                **manifest_facts(self.spec),
                step=job.step,
                policy_version=job.step,
                details=adapter_details(self.spec, job.step, job.reward) | dict(job.named.details if job.named else {}),
                once=not is_copy,
            )
            known |= {job.step}
            if job.kind is ArtifactKind.checkpoint:
                self.usable_checkpoint = max(self.usable_checkpoint, job.step)
        except ArtifactExists as error:
            # After a restart from an older checkpoint, the run repeats the step. Users may already have the first
            # artifact.
            log.warning(
                "Keeping the existing %s of step %d, which the run uploaded before: %s", job.kind, job.step, error
            )
            if job.named is not None and (manifest := self._named_manifest(job.uri, job.named)) is None:
                raise
        if job.named is not None and manifest is not None:
            job.named.record(manifest)
        if is_copy:
            return sorted(known)
        folder = S3Uri(job.uri.bucket, job.uri.key.rsplit("/", 1)[0])
        try:
            # List again, because retention may have deleted older ones.
            return completed_steps(self.store, folder, self.first_step, known)
        except StoreError as error:
            log.warning("%s is complete, but the other artifacts could not be listed: %s", job.uri, error)
            return sorted(known)
