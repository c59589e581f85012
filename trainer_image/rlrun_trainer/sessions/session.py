"""Session of one run: a trainer slot whose state is saved. Subclasses define what changes the state."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.constants import LATER, Reason
from rlrun.protocol.problem import Problem
from rlrun.protocol.trainer import SessionSpec
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind

from rlrun_trainer.artifacts.artifact_files import DISK_FULL, on_disk
from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress, StepOutcome
from rlrun_trainer.artifacts.upload_queue import SavedName, UploadJob, UploadQueue
from rlrun_trainer.runtime.compute_thread import Compute
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.sessions.backend import Backend

log = logging.getLogger(__name__)

REMEMBERED_SAVES = 16


@dataclass
class SessionStart:
    """State from which a session starts, after its checkpoint was restored."""

    step: int
    orchestrator_state: dict[str, Any] | None
    state_step: int | None
    """Step of the orchestrator's state."""
    made: StepOutcome | None = None
    """Result of this run's newest step, if the checkpoint contains it."""
    saved_as: ArtifactKind | None = None
    """Kind of this run's artifact from which the session starts, or None if it starts from the base model or from
    another run's checkpoint.
    """


@dataclass(frozen=True)
class OpenedSlot:
    """Slot of a new session in the state from which the session starts."""

    name: str
    spec: SessionSpec
    backend: Backend
    compute: Compute
    settings: TrainerSettings
    warnings: Sequence[Problem]
    start: SessionStart
    uploads: UploadQueue


@dataclass(frozen=True)
class _Save:
    """Checkpoint or recovery copy of this session, with the device time that the session had used by then."""

    kind: ArtifactKind
    step: int
    seconds: float


class Session(ABC):
    """Session of one run. Runs on the event loop, and changes its slot in one request at a time."""

    def __init__(self, slot: OpenedSlot) -> None:
        self.name = slot.name
        self.spec = slot.spec
        self.uploads = slot.uploads
        self.is_closed = False
        self.on_trained: Callable[[int], None] = lambda tokens: None
        """Callback that receives the number of tokens in each completed step or `forward_backward` command."""
        self._backend = slot.backend
        self._compute = slot.compute
        self._settings = slot.settings
        self._start = slot.start
        self._step = slot.start.step
        self._layout = RunLayout(S3Uri.parse(slot.spec.run_uri))
        self._leaving = False
        self._opened_at = slot.compute.seconds_of(slot.name)
        self._saves: deque[_Save] = deque(maxlen=REMEMBERED_SAVES)
        """Newest checkpoints and recovery copies, which may not be complete."""
        self._turn = asyncio.Lock()

    @property
    def step(self) -> int:
        """Step under which artifacts of the current state are saved."""
        return self._step

    @property
    @abstractmethod
    def _progress(self) -> CheckpointProgress:
        """Progress of the current state."""

    @property
    def has_unsaved_step(self) -> bool:
        """True if a step was taken and no complete checkpoint or recovery copy contains the newest step."""
        return self._step != self._start.step and not any(
            self._step in self.uploads.completed.get(kind, [])
            for kind in (ArtifactKind.checkpoint, ArtifactKind.recovery)
        )

    @property
    def is_leaving(self) -> bool:
        """True if further steps are rejected."""
        return self._leaving

    def reject_steps(self) -> None:
        """Reject further steps."""
        self._leaving = True

    def require_staying(self) -> None:
        """Raise ProblemError (`TrainerStopping`, 503) if further steps are rejected."""
        if self._leaving:
            raise ProblemError.of(
                LATER, Reason.TRAINER_STOPPING, "The trainer is shutting down. Retry against its replacement."
            )

    async def save_before_exit(self) -> None:
        """Save a checkpoint unless a complete or pending checkpoint already contains the newest step, or this session
        has taken no step. Waits for the current request. The upload goes before all queued uploads.

        The checkpoint contains `_progress`. For a run with an orchestrator, this includes the orchestrator's newest
        known state with its step, and the newest step's metrics, because an orchestrator that shuts down at the same
        time has not received them.
        """
        self.reject_steps()
        async with self._turn:
            step = self._step
            there = self.uploads.completed.get(ArtifactKind.checkpoint, [])
            if step == self._start.step or step in there or self.uploads.has(ArtifactKind.checkpoint, step):
                return
            log.info("Session %s: saving step %d, which no checkpoint contains", self.name, step)
            await self._save(ArtifactKind.checkpoint, self._layout.checkpoint(step), self._progress, first=True)

    def extend(self, max_steps: int) -> None:
        """Increase the number of steps of the run."""
        self.spec = self.spec.model_copy(update={"max_steps": max_steps})

    async def close(self) -> None:
        """Release the slot after the current request. Uploads continue, because they have copies of their own."""
        async with self._turn:
            await self._compute.run(self.name, self._backend.close_slot, self.name)
            self.uploads.close()
            self.is_closed = True

    @property
    def _needs_copy(self) -> bool:
        """True if a recovery copy of the newest step is due."""
        limit = self._settings.recovery_seconds
        if limit <= 0 or self._leaving:
            return False
        since = next((save.seconds for save in reversed(self._saves) if self._is_kept(save)), self._opened_at)
        return self._compute.seconds_of(self.name) - since >= limit and self.uploads.has_capacity_for_copy()

    def _is_kept(self, save: _Save) -> bool:
        """Return True if the save's upload is complete, queued or running."""
        return self.uploads.has(save.kind, save.step) or save.step in self.uploads.completed.get(save.kind, [])

    async def _save_copy(self, step: int) -> None:
        """Save a recovery copy of this step, unless a newer step has been taken. A failure is only logged."""
        async with self._turn:
            if self._step != step or self._leaving or self.is_closed or not self.uploads.has_capacity_for_copy():
                return
            try:
                await self._save(ArtifactKind.recovery, self._layout.recovery_copy(step), self._progress)
            except Exception as error:
                log.warning("Session %s: no recovery copy of step %d: %s", self.name, step, error)

    async def _save(
        self,
        kind: ArtifactKind,
        uri: S3Uri,
        progress: CheckpointProgress | None = None,
        *,
        step: int | None = None,
        reward: float | None = None,
        named: SavedName | None = None,
        first: bool = False,
    ) -> None:
        """Take a snapshot and queue its upload. If `progress` is None, the snapshot contains only the policy. `step`
        defaults to the newest step.
        """
        step = self._step if step is None else step
        started = time.perf_counter()
        try:
            if progress is not None:
                files = await self._compute.run(self.name, self._backend.snapshot, self.name, progress)
            else:
                files = await self._compute.run(self.name, self._backend.policy_files, self.name)
            files = await asyncio.to_thread(on_disk, files, self._settings.scratch)
        except ProblemError as error:
            if error.problem.reason != DISK_FULL:
                raise
            raise ProblemError.of(LATER, Reason.UPLOADS_BEHIND, error.problem.message) from error
        taken = time.perf_counter() - started
        self.uploads.submit(UploadJob(kind, step, uri, files, reward, taken, named=named), first)
        if progress is not None:
            self._saves.append(_Save(kind, step, self._compute.seconds_of(self.name)))
