"""One run's session: opens where it should start, steps once per number, publishes, saves."""

import asyncio
import logging
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.artifacts.layout import RunLayout, S3Uri
from rlrun.artifacts.manifest import ArtifactKind
from rlrun.artifacts.store import Store, StoreError
from rlrun.schema.wire import PolicyRef, Sample, SampleLoss, SessionSpec, SessionState, StepResult

from rlrun_trainer import checkpoint
from rlrun_trainer.compute import Compute
from rlrun_trainer.crew import Crew
from rlrun_trainer.distribution import stop_tokens
from rlrun_trainer.files import Files, discard
from rlrun_trainer.pace import Pace
from rlrun_trainer.packing import check
from rlrun_trainer.problems import CONFLICT, UNPROCESSABLE, Refused, refused_opening, refused_publishing
from rlrun_trainer.publish import Publisher
from rlrun_trainer.schedule import learning_rate
from rlrun_trainer.settings import Settings
from rlrun_trainer.slots import Slot
from rlrun_trainer.step import StepPlan
from rlrun_trainer.uploads import Job, Uploads, completed_steps

log = logging.getLogger(__name__)


@dataclass
class Start:
    """Where a session begins, as found in S3 and put into its slot."""

    step: int
    orchestrator_state: dict[str, Any] | None


@dataclass
class _Unpublished:
    files: Files
    metrics: dict[str, float]
    seconds: float
    """Of the step until now."""
    batch_id: str


class Session:
    """Made by `open_session`. Its requests come from the event loop and are served one at a time."""

    def __init__(
        self,
        name: str,
        spec: SessionSpec,
        crew: Crew,
        slot: Slot,
        start: Start,
        compute: Compute,
        publisher: Publisher,
        uploads: Uploads,
        policy: PolicyRef,
        settings: Settings,
    ) -> None:
        self.name = name
        self.spec = spec
        self.uploads = uploads
        self.last: StepResult | None = None
        self._crew = crew
        self._slot = slot
        self._step = start.step
        self._orchestrator_state = start.orchestrator_state
        self._compute = compute
        self._publisher = publisher
        self._policy = policy
        self._settings = settings
        self._layout = RunLayout(S3Uri.parse(spec.run_uri))
        self._unpublished: _Unpublished | None = None
        self._reward: tuple[int, float] | None = None
        self._turn = asyncio.Lock()
        self._pruning: asyncio.Task[None] | None = None
        self._pace = Pace()

    @property
    def state(self) -> SessionState:
        """As of now."""
        return SessionState(
            step=self._step,
            policy=self._policy,
            checkpoints=self.uploads.completed.get(ArtifactKind.checkpoint, []),
            adapters=self.uploads.completed.get(ArtifactKind.adapter, []),
            uploads_pending=self.uploads.pending,
            problem=self.uploads.problem,
            orchestrator_state=self._orchestrator_state,
            last=self.last if self.last is not None and self.last.step == self._step else None,
        )

    async def train(self, step: int, samples: list[Sample], batch_id: str = "") -> StepResult:
        """Makes step number `step` (training version `step` into `step + 1`), or gives the result it already has.

        The result names the batch that the step was made of, whatever batch a repeated request brings.
        Raises Refused: StepConflict for any other number, RunComplete beyond maxSteps, BatchInvalid, StepNotFinite,
        TrainerOutOfMemory; with an S3 reason when the step is done but not published (asking again publishes it).
        """
        async with self._turn:
            done = self._unpublished is not None or self.last is not None
            if step == self._step - 1 and done:
                return await self._finish()
            if step != self._step:
                raise Refused(
                    CONFLICT,
                    "StepConflict",
                    f"step {step} was asked for, the session is at {self._step}: go on from there",
                )
            if step >= self.spec.max_steps:
                raise Refused(UNPROCESSABLE, "RunComplete", f"all {self.spec.max_steps} steps of this run are done")
            if self._unpublished is not None:
                await self._finish()
            between = self._pace.begin()
            started = time.perf_counter()
            metrics, files = await self._compute.run(self._train, samples)
            metrics |= between
            lags = [step - sample.policy_version for sample in samples if sample.loss is SampleLoss.policy]
            if lags:
                metrics["batch/off_policy_level/mean"] = sum(lags) / len(lags)
                metrics["batch/off_policy_level/max"] = float(max(lags))
            self._step += 1
            self.last = None
            self._unpublished = _Unpublished(files, metrics, time.perf_counter() - started, batch_id)
            return await self._finish()

    async def save_checkpoint(self, step: int, orchestrator_state: dict[str, Any]) -> SessionState:
        """Snapshots the state after `step` steps now and uploads it in the background. Raises Refused."""
        self._note_reward(step, orchestrator_state)
        async with self._turn:
            if not self._already(ArtifactKind.checkpoint, step):
                progress = checkpoint.Progress(step, self.spec.run_uid, orchestrator_state)
                with self._pace.saving():
                    files = await self._compute.run(self._crew.snapshot, self.name, progress)
                self._submit(ArtifactKind.checkpoint, step, self._layout.checkpoint(step), files)
        return self.state

    async def save_adapter(self, step: int, orchestrator_state: dict[str, Any]) -> SessionState:
        """The adapter after `step` steps as an artifact for users, uploaded in the background. Raises Refused."""
        self._note_reward(step, orchestrator_state)
        async with self._turn:
            if not self._already(ArtifactKind.adapter, step):
                with self._pace.saving():
                    files = await self._compute.run(self._crew.files, self.name)
                self._submit(ArtifactKind.adapter, step, self._layout.adapter(step), files)
        return self.state

    def extend(self, max_steps: int) -> None:
        """Lets the run go on to so many steps."""
        self.spec = self.spec.model_copy(update={"max_steps": max_steps})

    async def close(self) -> None:
        """Frees the slot after the request that runs; uploads go on, they hold their own copies."""
        async with self._turn:
            await self._compute.run(self._crew.close, self.name)
            if self._unpublished is not None:
                discard(self._unpublished.files)

    def _train(self, samples: list[Sample]) -> tuple[dict[str, float], Files]:
        spec, settings = self.spec, self._settings
        check(samples, spec.seq_len, self._crew.base.vocab_size)
        plan = StepPlan(
            learning_rate=learning_rate(
                spec.learning_rate, spec.warmup_steps or settings.warmup_steps, self._slot.updates
            ),
            temperature=spec.temperature,
            micro_batch_tokens=spec.micro_batch_tokens,
            max_grad_norm=settings.max_grad_norm,
            version=self._step,
            top_p=spec.top_p,
            repetition_penalty=spec.repetition_penalty,
            min_tokens=spec.min_tokens,
            stop_tokens=stop_tokens(self._crew.base.model) if spec.min_tokens else (),
            loss=spec.loss,
            kl_penalty=spec.kl_penalty,
            micro_batches=spec.gradient_accumulation_steps,
        )
        return self._crew.train(self.name, samples, plan), self._crew.files(self.name)

    async def _finish(self) -> StepResult:
        """Publishes what is not published yet, and gives the result of the step done last."""
        waiting = self._unpublished
        if waiting is not None:
            started = time.perf_counter()
            try:
                policy = await asyncio.to_thread(self._publisher.publish, self._step, waiting.files)
            except StoreError as error:
                raise refused_publishing(error) from error
            seconds = time.perf_counter() - started
            metrics = waiting.metrics | {"time/broadcast_weights": seconds, "time/step": waiting.seconds + seconds}
            self._policy = policy
            self._pace.done()
            self.last = StepResult(step=self._step, policy=policy, metrics=metrics, batch_id=waiting.batch_id)
            self._unpublished = None
            discard(waiting.files)
            if self._pruning is None or self._pruning.done():
                self._pruning = asyncio.create_task(asyncio.to_thread(self._publisher.prune))
        assert self.last is not None
        return self.last

    def _already(self, kind: ArtifactKind, step: int) -> bool:
        """Whether this session made that artifact or is making it. Raises Refused when it no longer can."""
        if self.uploads.has(kind, step):
            return True
        if step == self._step:
            self.uploads.check_room()
            return False
        if step in self.uploads.completed.get(kind, []):
            return True
        raise Refused(CONFLICT, "StepConflict", f"{kind} of step {step} was asked for, the session is at {self._step}")

    def _submit(self, kind: ArtifactKind, step: int, uri: S3Uri, files: Files) -> None:
        reward = self._reward[1] if self._reward is not None and self._reward[0] == step else None
        self.uploads.submit(Job(kind, step, uri, files, reward))

    def _note_reward(self, step: int, orchestrator_state: Mapping[str, Any]) -> None:
        progress = orchestrator_state.get("progress")
        reward = orchestrator_state.get("reward", progress.get("reward") if isinstance(progress, dict) else None)
        if isinstance(reward, int | float):
            self._reward = (step, float(reward))


async def open_session(
    name: str, spec: SessionSpec, crew: Crew, compute: Compute, store: Store, settings: Settings
) -> Session:
    """Claims a slot, restores what the spec names, publishes the policy to start from.

    Raises Refused with nothing left behind: NoFreeSlot, AdapterInvalid, CheckpointMismatch, or an S3 reason.
    """
    try:
        layout = RunLayout(S3Uri.parse(spec.run_uri))
        source = spec.resume_from or spec.warm_start_from
        found = S3Uri.parse(source) if source else None
    except ValueError as error:
        raise Refused(UNPROCESSABLE, "SessionInvalid", str(error)) from error
    slot = await compute.run(crew.open, name, spec)
    try:
        start = Start(0, None)
        if found is not None:
            with tempfile.TemporaryDirectory(prefix="rlrun-") as room:
                there = Path(room) / "checkpoint"
                await asyncio.to_thread(_download, store, found, there)
                start = _start(spec, await compute.run(crew.restore, name, there))
        publisher = await asyncio.to_thread(Publisher, store, spec, settings.keep_policies)
        files = await compute.run(crew.files, name)
        policy = await asyncio.to_thread(publisher.publish, start.step, files)
        discard(files)
        uploads = Uploads(store, spec, settings.upload_queue, settings.upload_tries)
        for kind, folder in ((ArtifactKind.checkpoint, layout.checkpoints), (ArtifactKind.adapter, layout.adapters)):
            uploads.completed[kind] = await asyncio.to_thread(completed_steps, store, folder)
    except BaseException as error:
        await compute.run(crew.close, name)
        if isinstance(error, StoreError):
            raise refused_opening(error) from error
        raise
    log.info("session %s opens at step %d with %s", name, start.step, policy.name)
    return Session(name, spec, crew, slot, start, compute, publisher, uploads, policy, settings)


def _download(store: Store, uri: S3Uri, folder: Path) -> None:
    manifest = store.download_artifact(uri, folder)
    if manifest.kind != ArtifactKind.checkpoint:
        raise Refused(UNPROCESSABLE, "CheckpointMismatch", f"{uri} holds a {manifest.kind}, not a checkpoint")


def _start(spec: SessionSpec, progress: checkpoint.Progress) -> Start:
    if not spec.resume_from:
        return Start(0, None)
    if progress.run_uid != spec.run_uid:
        raise Refused(
            UNPROCESSABLE,
            "CheckpointMismatch",
            f"{spec.resume_from} belongs to run {progress.run_uid}, not to {spec.run_uid}: use warmStartFrom",
        )
    return Start(progress.step, progress.orchestrator_state)
