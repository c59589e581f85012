"""Opening of a session: claims a slot, restores a checkpoint, publishes the initial policy."""

import asyncio
import logging
import tempfile
from pathlib import Path

from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.protocol.trainer import SessionSpec
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import Store, StoreError

from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress
from rlrun_trainer.artifacts.policy_publisher import Publisher
from rlrun_trainer.artifacts.s3_errors import refused_opening
from rlrun_trainer.artifacts.upload_queue import UploadQueue, completed_steps
from rlrun_trainer.runtime.compute_thread import Compute
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.sessions.backend import Backend
from rlrun_trainer.sessions.training_session import Start, TrainingSession

log = logging.getLogger(__name__)


async def open_session(
    name: str, spec: SessionSpec, backend: Backend, compute: Compute, store: Store, settings: TrainerSettings
) -> TrainingSession:
    """Claim a slot, restore the spec's checkpoint if any, and publish the initial policy.

    Raises ProblemError (NoFreeSlot, AdapterInvalid, CheckpointMismatch or an S3 reason) with the slot released.
    """
    try:
        layout = RunLayout(S3Uri.parse(spec.run_uri))
        source = spec.resume_from or spec.warm_start_from
        found = S3Uri.parse(source) if source else None
    except ValueError as error:
        raise ProblemError.of(UNPROCESSABLE, Reason.SESSION_INVALID, str(error)) from error
    warnings = await compute.run(name, backend.open_slot, name, spec)
    publisher: Publisher | None = None
    try:
        start = Start(0, None, None)
        if found is not None:
            with tempfile.TemporaryDirectory(prefix="rlrun-") as temporary:
                there = Path(temporary) / "checkpoint"
                resume = spec.resume_from is not None
                digest = None if resume else spec.warm_start_digest
                await asyncio.to_thread(_download, store, found, there, digest or "")
                try:
                    progress = await compute.run(name, backend.restore, name, there, resume)
                except ProblemError as error:
                    raise ProblemError.of(
                        error.status, error.problem.reason, f"{found}: {error.problem.message}"
                    ) from error
                start = _start(spec, progress)
        published = await asyncio.to_thread(store.list_folders, layout.root / "policy")
        publisher = Publisher(store, spec, settings.keep_policies, published)
        uploads = UploadQueue(
            store, spec, settings.upload_queue, settings.upload_bytes, settings.upload_tries, start.step
        )
        for kind, folder in ((ArtifactKind.checkpoint, layout.checkpoints), (ArtifactKind.adapter, layout.adapters)):
            uploads.completed[kind] = await asyncio.to_thread(completed_steps, store, folder, start.step)
        policy = await publisher.publish(start.step, await compute.run(name, backend.policy_files, name))
    except BaseException as error:
        await compute.run(name, backend.close_slot, name)
        if publisher is not None:
            await publisher.close()
        if isinstance(error, StoreError):
            raise refused_opening(error) from error
        raise
    log.info("Session %s starts at step %d with %s", name, start.step, policy.name)
    return TrainingSession(name, spec, backend, warnings, start, compute, publisher, uploads, policy, settings)


def _download(store: Store, uri: S3Uri, folder: Path, digest: str) -> None:
    manifest = store.download(uri, folder, digest=digest)
    if manifest.kind != ArtifactKind.checkpoint:
        raise ProblemError.of(
            UNPROCESSABLE, Reason.CHECKPOINT_MISMATCH, f"{uri} contains {manifest.kind} files instead of a checkpoint."
        )


def _start(spec: SessionSpec, progress: CheckpointProgress) -> Start:
    if not spec.resume_from:
        # Another run's steps do not count here, so its orchestrator's state belongs to none of this run's steps.
        return Start(0, progress.orchestrator_state, None)
    if progress.run_uid != spec.run_uid:
        raise ProblemError.of(
            UNPROCESSABLE,
            Reason.CHECKPOINT_MISMATCH,
            f"{spec.resume_from} belongs to run {progress.run_uid}, not to {spec.run_uid}. Use warmStartFrom.",
        )
    return Start(progress.step, progress.orchestrator_state, progress.state_step, progress.made)
