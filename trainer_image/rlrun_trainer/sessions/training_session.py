"""Training session of one run, which takes each step once, publishes policies and saves checkpoints."""

import asyncio
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlrun.constants import CONFLICT, SESSION_MISSING, UNPROCESSABLE, Reason
from rlrun.protocol.policy import PolicyRef
from rlrun.protocol.problem import Problem
from rlrun.protocol.train_batch import Sample, SampleLoss
from rlrun.protocol.trainer import SessionState, StepResult
from rlrun.service.errors import ProblemError
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import StoreError
from typing_extensions import override

from rlrun_trainer.artifacts.artifact_files import Files, discard
from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress, StepOutcome
from rlrun_trainer.artifacts.policy_publisher import Publisher
from rlrun_trainer.artifacts.s3_errors import refused_publishing
from rlrun_trainer.runtime.compute_thread import Units
from rlrun_trainer.sessions.batch_validation import check_batch
from rlrun_trainer.sessions.session import OpenedSlot, Session
from rlrun_trainer.sessions.shutdown_budget import exceeds_grace_period
from rlrun_trainer.sessions.step_timer import StepTimer


@dataclass(frozen=True)
class OrchestratorState:
    """Newest state received from the orchestrator, and its step."""

    step: int
    state: dict[str, Any]


@dataclass
class _Unpublished:
    metrics: dict[str, float]
    seconds: float
    """Duration of the step before its publication, in seconds."""
    batch_id: str
    files: Files | None = None
    """Files of the policy, or None until they are written. Writing may fail for lack of disk space."""


class TrainingSession(Session):
    """Session of a run with an orchestrator, created by `open_session`. Serves one request at a time."""

    def __init__(self, slot: OpenedSlot, publisher: Publisher, policy: PolicyRef) -> None:
        super().__init__(slot)
        start = slot.start
        self.last: StepResult | None = None
        if start.made is not None:
            self.last = StepResult(step=start.step, policy=policy, **asdict(start.made))
        self._warnings = slot.warnings
        self._known = OrchestratorState(start.state_step or 0, start.orchestrator_state or {})
        self._publisher = publisher
        self._policy = policy
        self._unpublished: _Unpublished | None = None
        self._reward: tuple[int, float] | None = None
        self._mine = {(start.saved_as, start.step)} if start.saved_as is not None else set()
        """Artifacts with this session's weights: those that it created, and the artifact from which it resumed."""
        self._copying: asyncio.Task[None] | None = None
        self._pace = StepTimer()
        self._step_seconds = 0.0
        """Duration of the newest step in seconds. A SIGTERM does not interrupt a step."""
        publisher.on_return = slot.uploads.try_again

    @property
    def state(self) -> SessionState:
        """Current state of the session."""
        return SessionState(
            step=self._step,
            policy=self._policy,
            checkpoints=self.uploads.completed.get(ArtifactKind.checkpoint, []),
            adapters=self.uploads.completed.get(ArtifactKind.adapter, []),
            uploads_pending=self.uploads.pending_for_users,
            problem=self.uploads.problem or self._publisher.problem,
            shutdown=exceeds_grace_period(
                self._step_seconds, self.uploads.checkpoint_seconds, self._settings.shutdown_seconds
            ),
            warnings=self._findings,
            orchestrator_state=self._start.orchestrator_state,
            orchestrator_state_step=self._start.state_step,
            last=self.last if self.last is not None and self.last.step == self._step else None,
        )

    @property
    def _findings(self) -> list[Problem]:
        return [*self._backend.warnings, *self._warnings]

    async def train(self, step: int, samples: list[Sample], batch_id: str = "") -> StepResult:
        """Take step number `step` (from version `step` to `step + 1`), or return the result of a repeated request.

        The result names the batch with which the step was taken, even if a repeated request contains another batch.
        Raises ProblemError: StepConflict for any other number, RunComplete beyond maxSteps, BatchInvalid,
        StepNotFinite, TrainerOutOfMemory, TrainerStopping during shutdown, or an S3 reason if the step is done but not
        published (a repeated request publishes it).
        """
        async with self._turn:
            done = self._unpublished is not None or self.last is not None
            if step == self._step - 1 and done:
                return await self._finish()
            if step != self._step:
                raise ProblemError.of(
                    CONFLICT,
                    Reason.STEP_CONFLICT,
                    f"Step {step} was requested, but the session is at step {self._step}. Continue from there.",
                )
            self.require_staying()
            if step >= self.spec.max_steps:
                raise ProblemError.of(
                    UNPROCESSABLE, Reason.RUN_COMPLETE, f"All {self.spec.max_steps} steps of this run are done."
                )
            if self._unpublished is not None:
                await self._finish()
            between = self._pace.begin()
            started = time.perf_counter()
            metrics = await self._compute.run_units(self.name, self._train, samples)
            self.on_trained(sum(len(sample.token_ids) for sample in samples))
            metrics |= between
            lags = [step - sample.policy_version for sample in samples if sample.loss is SampleLoss.policy]
            if lags:
                metrics["batch/off_policy_level/mean"] = sum(lags) / len(lags)
                metrics["batch/off_policy_level/max"] = float(max(lags))
            self._step += 1
            self.last = None
            self._unpublished = _Unpublished(metrics, time.perf_counter() - started, batch_id)
            return await self._finish()

    async def save_checkpoint(self, step: int, orchestrator_state: dict[str, Any]) -> SessionState:
        """Take a snapshot of the state after `step` steps and upload it in the background, unless this was done before.
        Raises ProblemError.
        """
        self._note(step, orchestrator_state)
        async with self._turn:
            if not self._already(ArtifactKind.checkpoint, step):
                progress = CheckpointProgress(step, self.spec.run_uid, orchestrator_state)
                await self._save(ArtifactKind.checkpoint, self._layout.checkpoint(step), progress)
        return self.state

    async def save_adapter(self, step: int, orchestrator_state: dict[str, Any]) -> SessionState:
        """Save the adapter after `step` steps as an artifact for users, in the background. Raises ProblemError."""
        self._note(step, orchestrator_state)
        async with self._turn:
            if not self._already(ArtifactKind.adapter, step):
                await self._save(ArtifactKind.adapter, self._layout.adapter(step))
        return self.state

    def file(self, policy: str, file: str) -> bytes | Path:
        """Return a file of one of the newest policies, for engines that cannot load it from S3. Raises ProblemError
        (PolicyMissing).
        """
        found = self._publisher.file(policy, file)
        if found is None:
            raise ProblemError.of(
                SESSION_MISSING, Reason.POLICY_MISSING, f"{file} of {policy} is not cached. Load it from S3."
            )
        return found

    @override
    async def close(self) -> None:
        await super().close()
        if self._unpublished is not None and self._unpublished.files is not None:
            discard(self._unpublished.files)
        await self._publisher.close()

    @property
    @override
    def _progress(self) -> CheckpointProgress:
        """Progress of the newest step, with the newest known state of the orchestrator."""
        newest = self._unpublished or self.last
        made = StepOutcome(newest.metrics, newest.batch_id) if newest else None
        return CheckpointProgress(self._step, self.spec.run_uid, self._known.state, self._known.step, made)

    def _train(self, samples: list[Sample]) -> Units[dict[str, float]]:
        check_batch(samples, self.spec.seq_len)
        return (yield from self._backend.train(self.name, self.spec, samples, self._step))

    async def _finish(self) -> StepResult:
        """Publish the newest step, if it is not published yet, and return its result."""
        waiting = self._unpublished
        if waiting is not None:
            started = time.perf_counter()
            if waiting.files is None:
                waiting.files = await self._compute.run(self.name, self._backend.policy_files, self.name)
            try:
                policy = await self._publisher.publish(self._step, waiting.files)
            except StoreError as error:
                raise refused_publishing(error) from error
            seconds = time.perf_counter() - started
            self._step_seconds = waiting.seconds + seconds
            metrics = waiting.metrics | {"time/broadcast_weights": seconds, "time/step": self._step_seconds}
            self._policy = policy
            self._pace.finish_step()
            is_copied = self._needs_copy
            self.last = StepResult(
                step=self._step,
                policy=policy,
                metrics=metrics,
                batch_id=waiting.batch_id,
                warnings=self._findings,
                recovery_copy=is_copied,
            )
            self._unpublished = None
            if is_copied:
                # The result does not wait for the snapshot, which takes the next turn.
                self._copying = asyncio.create_task(self._save_copy(self._step), name=f"recovery copy {self.name}")
        assert self.last is not None
        return self.last

    @property
    @override
    def _needs_copy(self) -> bool:
        # The checkpoint of the last step follows without a copy.
        if self._step >= self.spec.max_steps or self._publisher.problem is not None:
            return False
        return super()._needs_copy

    def _already(self, kind: ArtifactKind, step: int) -> bool:
        """Return True if the artifact's upload is in progress, or if the artifact exists and, for the current step, has
        this session's weights. Raises ProblemError if it cannot be created.
        """
        there = step in self.uploads.completed.get(kind, [])
        if self.uploads.has(kind, step) or (there and (kind, step) in self._mine):
            return True
        if step == self._step:
            self.uploads.check_capacity(kind)
            return False
        if there:
            return True
        raise ProblemError.of(
            CONFLICT,
            Reason.STEP_CONFLICT,
            f"The {kind} of step {step} was requested, but the session is at step {self._step}.",
        )

    @override
    async def _save(self, kind: ArtifactKind, *arguments: Any, **options: Any) -> None:
        reward = self._reward[1] if self._reward is not None and self._reward[0] == self._step else None
        with self._pace.saving():
            await super()._save(kind, *arguments, reward=reward, **options)
        self._mine.add((kind, self._step))

    def _note(self, step: int, orchestrator_state: dict[str, Any]) -> None:
        if orchestrator_state:
            self._known = OrchestratorState(step, orchestrator_state)
        progress = orchestrator_state.get("progress")
        reward = orchestrator_state.get("reward", progress.get("reward") if isinstance(progress, dict) else None)
        if isinstance(reward, int | float):
            self._reward = (step, float(reward))
