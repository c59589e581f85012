"""The run, as a story: collect a batch, make a step, publish the policy, save, report; until there are enough steps.

Only the step itself waits for the trainer. Rollouts go on all the time with the newest policy that is published, the
publication of the next one runs beside the collection of the next batch, and S3 is written behind the loop's back.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rlrun.schema.wire import PolicyRef, RunPhase, SessionState, StepResult

from rlrun_orchestrator.batching import rollout_lines, trained_tokens, training_samples
from rlrun_orchestrator.board import Board
from rlrun_orchestrator.dispatcher import Dispatcher
from rlrun_orchestrator.errors import EXIT_RESTART, RunFailed
from rlrun_orchestrator.evaluator import Evaluator
from rlrun_orchestrator.http import Unavailable
from rlrun_orchestrator.inference import ReplicaPool
from rlrun_orchestrator.metrics import batch_metrics, finite, mean
from rlrun_orchestrator.recorder import Recorder
from rlrun_orchestrator.rollouts import Group
from rlrun_orchestrator.settings import Settings
from rlrun_orchestrator.trainer_client import SessionLost
from rlrun_orchestrator.trainer_session import TrainerSession

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
"""Longest sleep while a batch is collected: failures elsewhere are noticed at least that often."""


@dataclass(frozen=True)
class Cadence:
    """How often, in steps; 0 is never but at the end."""

    max_steps: int
    checkpoints: int
    adapters: int

    def checkpoint_due(self, step: int) -> bool:
        """After every `checkpoints` steps and after the last."""
        return step >= self.max_steps or (self.checkpoints > 0 and step % self.checkpoints == 0)

    def adapter_due(self, step: int) -> bool:
        """After every `adapters` steps and after the last."""
        return step >= self.max_steps or (self.adapters > 0 and step % self.adapters == 0)


@dataclass
class Collected:
    """A batch on its way to the trainer, and what collecting it cost in seconds."""

    groups: list[Group]
    seconds: float
    waited_for_policy: float


class RunLoop:
    """Everything is ready when this starts: trainer session open, environments ready, replicas being watched."""

    def __init__(
        self,
        session: TrainerSession,
        dispatcher: Dispatcher,
        pool: ReplicaPool,
        recorder: Recorder,
        evaluator: Evaluator,
        board: Board,
        cadence: Cadence,
        settings: Settings,
        rollouts_per_example: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.step = 0
        self._session = session
        self._dispatcher = dispatcher
        self._pool = pool
        self._recorder = recorder
        self._evaluator = evaluator
        self._board = board
        self._cadence = cadence
        self._settings = settings
        self._rollouts_per_example = rollouts_per_example
        self._clock = clock
        self._batch: Collected | None = None
        self._publishing: asyncio.Task[None] | None = None
        self._publish_seconds = 0.0

    async def run(self, state: SessionState) -> None:
        """From the trainer's present step to the last one. Raises RunFailed."""
        await self._begin(state)
        while True:
            try:
                while self.step < self._cadence.max_steps:
                    await self._one_step()
                await self._finish()
                return
            except SessionLost as lost:
                await self._recover(lost)

    async def close(self) -> None:
        """Stops what runs beside the loop."""
        if self._publishing is not None:
            self._publishing.cancel()
            await asyncio.gather(self._publishing, return_exceptions=True)
        await self._dispatcher.close()
        await self._evaluator.close()

    # --- chapters -----------------------------------------------------------------------------------------------------

    async def _begin(self, state: SessionState) -> None:
        self.step = state.step
        self._board.rewound(state.step)
        self._dispatcher.rewind(state.step)
        if state.step >= self._cadence.max_steps:
            self._board.phase = RunPhase.running
            return
        # Engines may take as long to start as a run may take to start.
        await self._publish_now(state.policy, max(self._settings.start_deadline, self._settings.inference_deadline))
        self._board.phase = RunPhase.running
        self._board.started_at = self._board.started_at or datetime.now(UTC)
        self._dispatcher.start()
        self._evaluator.before_first_step(state.step, state.policy)

    async def _one_step(self) -> None:
        began = self._clock()
        if self._batch is None:
            self._batch = await self._collect()
        batch = self._batch
        sent = self._clock()
        result = await self._train(batch.groups)
        trained = self._clock()
        self._batch = None
        self._dispatcher.batch_trained()
        self.step = result.step
        self._publish(result.policy)
        self._report(batch, result, seconds=trained - began, train_seconds=trained - sent)
        await self._save(result.step)
        self._evaluator.after_step(result.step, result.policy)

    async def _collect(self) -> Collected:
        began = self._clock()
        waited = 0.0
        while (groups := self._dispatcher.take_batch()) is None:
            self._check()
            waits, before = self._dispatcher.scheduler.waits_for_policy, self._clock()
            await self._dispatcher.changed(0.05 if waits else TICK_SECONDS)
            waited += self._clock() - before if waits else 0.0
        return Collected(groups, self._clock() - began, waited)

    async def _train(self, groups: list[Group]) -> StepResult:
        return await self._session.step(self.step, training_samples(groups))

    async def _save(self, step: int) -> None:
        if self._cadence.checkpoint_due(step):
            state = await self._session.checkpoint(step, self.state())
            if state.problem is not None:
                self._board.warn(state.problem)
        if self._cadence.adapter_due(step):
            await self._session.adapter(step, self.state())

    async def _finish(self) -> None:
        await self._dispatcher.close()
        for step, values in await self._evaluator.finish(self._settings.finish_deadline):
            self._recorder.metrics(step, datetime.now(UTC), finite(values))
        await self._session.finish(self.step, self.state())
        self._recorder.state(self.state())
        self._board.phase = RunPhase.completed

    async def _recover(self, lost: SessionLost) -> None:
        """The trainer was replaced: its session continues from a checkpoint, and so does everything else."""
        log.warning("the trainer has lost the session: %s", lost)
        state = await self._session.open(self._settings.trainer_deadline)
        self._board.trainer_restarts += 1
        if state.step == self.step and self._batch is not None:
            log.info("the trainer is still at step %d: the batch is sent again", state.step)
        else:
            log.info("back from step %d to step %d", self.step, state.step)
            self._batch = None
            self.step = state.step
            self._board.rewound(state.step)
            self._dispatcher.rewind(state.step)
        self._publish(state.policy)

    # --- beside the steps ---------------------------------------------------------------------------------------------

    def _publish(self, policy: PolicyRef) -> None:
        """Starts the publication; an older one that is still under way is overtaken."""
        self._check()
        if self._publishing is not None and not self._publishing.done():
            self._publishing.cancel()
        publication = self._publish_now(policy, self._settings.inference_deadline)
        self._publishing = asyncio.create_task(publication, name=f"publish {policy.name}")

    async def _publish_now(self, policy: PolicyRef, deadline: float) -> None:
        began = self._clock()
        try:
            await self._pool.publish(
                policy,
                deadline=deadline,
                grace=self._settings.publish_grace,
                report=lambda problem: self._board.wait("policy", problem),
            )
        except Unavailable as error:
            raise RunFailed(error.problem, EXIT_RESTART) from error
        self._publish_seconds = self._clock() - began
        self._dispatcher.published(policy)

    def _check(self) -> None:
        """Raises what went wrong beside the loop."""
        if self._dispatcher.failure is not None:
            raise self._dispatcher.failure
        if self._publishing is not None and self._publishing.done() and not self._publishing.cancelled():
            self._publishing.result()

    def _report(self, batch: Collected, result: StepResult, *, seconds: float, train_seconds: float) -> None:
        now = datetime.now(UTC)
        groups = batch.groups
        reward = mean(reward for group in groups for reward in group.rewards)
        tokens = trained_tokens(groups)
        self._board.mismatch(result.metrics.get("mismatch_kl/all/mean"), tokens)
        values = {
            **{name: value for name, value in result.metrics.items() if name not in ("time/step",)},
            **batch_metrics(groups, result.step - 1, self._rollouts_per_example),
            **self._dispatcher.buffer.metrics(),
            **self._evaluator.results(),
            "time/step": seconds,
            "time/generate_completions": batch.seconds,
            "time/wait_for_policy": batch.waited_for_policy,
            "time/trainer": train_seconds,
            "time/update_weights": self._publish_seconds,
            "perf/throughput": tokens / seconds if seconds > 0 else 0.0,
            "batch/async_level": float(result.step - 1 - self._board.policy_version),
            "batch/inflight_rollouts": float(self._dispatcher.in_flight * self._rollouts_per_example),
            "batch/cancelled_rollouts": float(self._dispatcher.cancelled * self._rollouts_per_example),
            "filtered_rollouts": float(self._dispatcher.filtered * self._rollouts_per_example),
            "progress/step": float(result.step),
            "progress/trainer_restarts": float(self._board.trainer_restarts),
        }
        self._dispatcher.cancelled = self._dispatcher.filtered = 0
        self._board.metrics = finite(values)
        self._board.step_done(result.step, reward, seconds, now)
        self._recorder.metrics(result.step, now, self._board.metrics)
        self._recorder.rollouts(result.step, rollout_lines(groups, result.step))
        self._recorder.state(self.state())
        if self._recorder.problem is not None:
            self._board.warn(self._recorder.problem)
        log.info("step %d/%d reward %.4f in %.1f s", result.step, self._cadence.max_steps, reward, seconds)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the orchestrator."""
        reward = self._board.rewards[-1][1] if self._board.rewards else None
        return {"version": 1, "reward": reward, "board": self._board.state(), "buffer": self._dispatcher.buffer.state()}
