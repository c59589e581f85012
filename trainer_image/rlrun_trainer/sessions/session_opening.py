"""Opens a session: claims a slot, restores a recovery copy or checkpoint, and publishes the initial policy unless a
client's program trains the run.

A session starts from the newest usable checkpoint or recovery copy of the run that is newer than the checkpoint in the
spec, and from the spec's checkpoint if there is none. The spec may name an older checkpoint, because the orchestrator
repeats its request while a former session still saves one. A dedicated trainer makes no copies, but may continue from
copies made by the shared trainer of an earlier attempt.
"""

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.protocol.problem import Problem
from rlrun.protocol.trainer import SessionSpec
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import RunLayout, S3Uri, step_of
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import AccessDenied, Corrupt, NotFound, Store, StoreError

from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress
from rlrun_trainer.artifacts.policy_publisher import Publisher
from rlrun_trainer.artifacts.recovery_copies import TRIED, RecoveryCopies
from rlrun_trainer.artifacts.s3_errors import refused_opening
from rlrun_trainer.artifacts.saved_states import SavedStatesObject
from rlrun_trainer.artifacts.upload_queue import UploadQueue, completed_steps
from rlrun_trainer.runtime.compute_thread import Compute
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.sessions.backend import Backend
from rlrun_trainer.sessions.client_session import ClientSession
from rlrun_trainer.sessions.session import OpenedSlot, SessionStart
from rlrun_trainer.sessions.training_session import TrainingSession

log = logging.getLogger(__name__)


async def open_session(
    name: str, spec: SessionSpec, backend: Backend, compute: Compute, store: Store, settings: TrainerSettings
) -> TrainingSession:
    """Claim a slot, restore the run's newest state or else the spec's checkpoint, if any, and publish the initial
    policy.

    Raises ProblemError (SessionInvalid, NoFreeSlot, AdapterInvalid, TrainerOutOfMemory, CheckpointMismatch or an S3
    reason) with the slot released.
    """
    async with _opened_slot(name, spec, backend, compute, store, settings) as slot:
        publisher = await _publisher(store, spec, settings)
        try:
            policy = await publisher.publish(slot.start.step, await compute.run(name, backend.policy_files, name))
        except BaseException:
            await publisher.close()
            raise
    log.info("Session %s starts at step %d with %s", name, slot.start.step, policy.name)
    return TrainingSession(slot, publisher, policy)


async def open_client_session(
    name: str, spec: SessionSpec, backend: Backend, compute: Compute, store: Store, settings: TrainerSettings
) -> ClientSession:
    """Claim a slot for a client's program, and restore the run's newest state or else the spec's checkpoint, if any.

    Raises ProblemError as `open_session` does.
    """
    async with _opened_slot(name, spec, backend, compute, store, settings) as slot:
        saved = SavedStatesObject(store, RunLayout(S3Uri.parse(spec.run_uri)))
        await saved.read()
        publisher = await _publisher(store, spec, settings)
    log.info("Session %s of a client's program starts after command %d", name, slot.start.step)
    return ClientSession(slot, saved, publisher)


async def _publisher(store: Store, spec: SessionSpec, settings: TrainerSettings) -> Publisher:
    """Return the publisher of a session's policies. Raises StoreError."""
    published = await asyncio.to_thread(store.list_folders, RunLayout(S3Uri.parse(spec.run_uri)).policies)
    # Calls of clients' programs exceed the six digits of shorter names.
    return Publisher(store, spec, settings.keep_policies, sorted(published, key=lambda name: (len(name), name)))


@asynccontextmanager
async def _opened_slot(
    name: str, spec: SessionSpec, backend: Backend, compute: Compute, store: Store, settings: TrainerSettings
) -> AsyncIterator[OpenedSlot]:
    """Context with a slot in the state from which the session starts. An error in the context releases the slot."""
    try:
        layout = RunLayout(S3Uri.parse(spec.run_uri))
        source = spec.resume_from or spec.warm_start_from
        found = S3Uri.parse(source) if source else None
        copies = RecoveryCopies(store, layout)
        first = step_of(spec.resume_from) + 1 if spec.resume_from else 0
    except ValueError as error:
        raise ProblemError.of(UNPROCESSABLE, Reason.SESSION_INVALID, str(error)) from error
    slot = _Slot(name, spec, backend, compute, store)
    await slot.open()
    try:
        saved = await asyncio.to_thread(_saved_states, store, layout, copies, first, settings.recovery_seconds > 0)
        start = await _restore_newest(slot, saved, copies)
        if start is None:
            start = await _restore_source(slot, found) if found is not None else SessionStart(0, None, None)
        uploads = UploadQueue(
            store,
            spec,
            settings.upload_queue,
            settings.upload_bytes,
            settings.upload_tries,
            start.step,
            start.step if start.saved_as is ArtifactKind.checkpoint else 0,
            copies,
        )
        for kind, folder in ((ArtifactKind.checkpoint, layout.checkpoints), (ArtifactKind.adapter, layout.adapters)):
            uploads.completed[kind] = await asyncio.to_thread(completed_steps, store, folder, start.step)
        uploads.completed[ArtifactKind.recovery] = [start.step] if start.saved_as is ArtifactKind.recovery else []
        yield OpenedSlot(name, spec, backend, compute, settings, slot.warnings, start, uploads)
    except BaseException as error:
        await compute.run(name, backend.close_slot, name)
        if isinstance(error, StoreError):
            raise refused_opening(error) from error
        raise


@dataclass
class _Slot:
    """Slot of the session that is being opened."""

    name: str
    spec: SessionSpec
    backend: Backend
    compute: Compute
    store: Store
    warnings: Sequence[Problem] = ()

    async def open(self) -> None:
        """Claim the slot. Raises ProblemError."""
        self.warnings = await self.compute.run(self.name, self.backend.open_slot, self.name, self.spec)

    async def reset(self) -> None:
        """Return the slot to its initial state after a failed `restore`. Raises ProblemError."""

        def reopen() -> Sequence[Problem]:
            self.backend.close_slot(self.name)
            return self.backend.open_slot(self.name, self.spec)

        self.warnings = await self.compute.run(self.name, reopen)

    async def restore(
        self, uri: S3Uri, kind: ArtifactKind, *, resume: bool, optimizer: bool = True, digest: str = ""
    ) -> CheckpointProgress:
        """Load an artifact of this kind. Raises ProblemError or StoreError, after which the slot is unusable."""
        with tempfile.TemporaryDirectory(prefix="rlrun-") as temporary:
            there = Path(temporary) / "checkpoint"
            await asyncio.to_thread(_download, self.store, uri, kind, there, digest)
            try:
                return await self.compute.run(self.name, self.backend.restore, self.name, there, resume, optimizer)
            except ProblemError as error:
                raise ProblemError.of(error.status, error.problem.reason, f"{uri}: {error.problem.message}") from error


async def _restore_source(slot: _Slot, uri: S3Uri) -> SessionStart:
    """Start from the spec's checkpoint. Raises ProblemError or StoreError."""
    resume = slot.spec.resume_from is not None
    digest = None if resume else slot.spec.warm_start_digest
    optimizer = resume or slot.spec.warm_start_optimizer
    progress = await slot.restore(uri, ArtifactKind.checkpoint, resume=resume, optimizer=optimizer, digest=digest or "")
    if not resume:
        # Another run's steps do not count here, so its orchestrator's state belongs to none of this run's steps.
        return SessionStart(0, progress.orchestrator_state, None)
    return _start(slot.spec, uri, progress, ArtifactKind.checkpoint)


@dataclass(frozen=True)
class _RestorePoint:
    """Checkpoint or recovery copy of the run from which its session may start."""

    step: int
    kind: ArtifactKind
    uri: S3Uri


def _saved_states(
    store: Store, layout: RunLayout, copies: RecoveryCopies, first: int, makes_copies: bool
) -> list[_RestorePoint]:
    """Return the newest TRIED checkpoints and recovery copies from step `first` on, newest first, including incomplete
    copies. A checkpoint precedes the copy of its step. Raises StoreError.
    """
    checkpoints = [
        _RestorePoint(step, ArtifactKind.checkpoint, layout.checkpoint(step))
        for step in completed_steps(store, layout.checkpoints, first)
    ]
    try:
        steps = copies.newest_from(first)
    except AccessDenied as error:
        if makes_copies:
            raise
        log.warning("Starting without recovery copies, because an older rlrun-server does not permit them: %s", error)
        steps = []
    found = [_RestorePoint(step, ArtifactKind.recovery, layout.recovery_copy(step)) for step in steps]
    return sorted([*checkpoints, *found], key=lambda state: state.step, reverse=True)[:TRIED]


async def _restore_newest(slot: _Slot, states: Sequence[_RestorePoint], copies: RecoveryCopies) -> SessionStart | None:
    """Start from the first usable state of these. Returns None, with the slot in its initial state, if there is none.
    Raises ProblemError or StoreError.
    """
    for state in states:
        try:
            progress = await slot.restore(state.uri, state.kind, resume=True)
            return _start(slot.spec, state.uri, progress, state.kind)
        except (NotFound, Corrupt, ProblemError) as error:
            if isinstance(error, ProblemError) and error.status != UNPROCESSABLE:
                raise  # the state may be usable
            log.warning("%s %s cannot be used; trying an older state: %s", state.kind, state.uri, error)
            if state.kind is ArtifactKind.recovery:
                copies.unusable.add(state.step)
            await slot.reset()
    return None


def _download(store: Store, uri: S3Uri, kind: ArtifactKind, folder: Path, digest: str) -> None:
    manifest = store.download(uri, folder, digest=digest)
    if manifest.kind != kind:
        raise ProblemError.of(
            UNPROCESSABLE,
            Reason.CHECKPOINT_MISMATCH,
            f"{uri} is an artifact of kind {manifest.kind}, not {kind}.",
        )


def _start(spec: SessionSpec, uri: S3Uri, progress: CheckpointProgress, kind: ArtifactKind) -> SessionStart:
    if progress.run_uid != spec.run_uid:
        raise ProblemError.of(
            UNPROCESSABLE,
            Reason.CHECKPOINT_MISMATCH,
            f"{uri} belongs to run {progress.run_uid}, not to {spec.run_uid}. Use warmStartFrom.",
        )
    return SessionStart(progress.step, progress.orchestrator_state, progress.state_step, progress.made, kind)
