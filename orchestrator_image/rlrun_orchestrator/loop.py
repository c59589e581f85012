"""The run, as a story: collect a batch, make a step, publish the policy, save, report; until there are enough steps.

Only the step itself waits for the trainer. Rollouts go on all the time with the newest policy that is published, the
publication of the next one runs beside the collection of the next batch, and S3 is written behind the loop's back.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from rlrun.schema.wire import PolicyRef, Problem, RunPhase, SessionState, StepResult

from rlrun_orchestrator import saved
from rlrun_orchestrator.batch import Batch
from rlrun_orchestrator.board import Board
from rlrun_orchestrator.cadence import Cadence
from rlrun_orchestrator.demonstrations import Demonstrations
from rlrun_orchestrator.dispatcher import Dispatcher
from rlrun_orchestrator.errors import EXIT_RESTART, RunFailed
from rlrun_orchestrator.evaluator import Evaluator
from rlrun_orchestrator.http import Unavailable
from rlrun_orchestrator.inference import ReplicaPool
from rlrun_orchestrator.metrics import finite, trainer_metrics
from rlrun_orchestrator.recorder import Recorder
from rlrun_orchestrator.reporter import Reporter, StepFacts, StepTimes
from rlrun_orchestrator.settings import Settings
from rlrun_orchestrator.trainer_client import SessionLost
from rlrun_orchestrator.trainer_session import TrainerSession

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
"""Longest sleep while a batch is collected: failures elsewhere are noticed at least that often."""


class RunLoop:
    """Everything is ready when this starts: trainer session open, environments ready, replicas being watched."""

    def __init__(
        self,
        run_uid: str,
        session: TrainerSession,
        dispatcher: Dispatcher,
        demonstrations: Demonstrations,
        pool: ReplicaPool,
        recorder: Recorder,
        reporter: Reporter,
        evaluator: Evaluator,
        board: Board,
        cadence: Cadence,
        settings: Settings,
        rollouts_per_example: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.step = 0
        self._run_uid = run_uid
        self._session = session
        self._dispatcher = dispatcher
        self._demonstrations = demonstrations
        self._pool = pool
        self._recorder = recorder
        self._reporter = reporter
        self._evaluator = evaluator
        evaluator.keep = lambda: recorder.state(self.state())
        self._board = board
        self._cadence = cadence
        self._settings = settings
        self._rollouts_per_example = rollouts_per_example
        self._clock = clock
        self._batch: Batch | None = None
        self._publishing: asyncio.Task[None] | None = None
        self._publish_seconds = 0.0
        self._save_seconds = 0.0

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Continues totals and evaluations from the state of an earlier process."""
        self._reporter.restore((state or {}).get("reporter"))
        self._evaluator.restore((state or {}).get("evaluator"))

    async def run(self, state: SessionState, unheard: saved.Unheard | None = None) -> None:
        """From the trainer's present step to the last one; `unheard` is the step that led there, if it has no line of
        metrics yet. Raises RunFailed.
        """
        await self._begin(state)
        while True:
            try:
                if unheard is not None:
                    step, unheard = unheard, None
                    await self._catch_up(state, step)
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
            await self._owed_evaluation(state)
            return
        # Engines may take as long to start as a run may take to start.
        await self._publish_now(state.policy, max(self._settings.start_deadline, self._settings.inference_deadline))
        self._board.phase = RunPhase.running
        self._board.started_at = self._board.started_at or datetime.now(UTC)
        self._dispatcher.start()
        self._evaluator.begin(state.step, state.policy)

    async def _owed_evaluation(self, state: SessionState) -> None:
        """An earlier process may have been cut off in the last evaluation. The run is done all the same."""
        if not self._evaluator.owes(state.step, state.policy):
            return
        try:
            await self._publish_now(state.policy, self._settings.finish_deadline)
        except RunFailed as failure:
            message = f"the final policy is not evaluated: {failure.problem.message}"
            self._board.wait("policy", None)
            self._board.warn(Problem(reason="EvaluationTimeout", message=message[:500]))
            return
        self._evaluator.begin(state.step, state.policy)

    async def _catch_up(self, state: SessionState, unheard: saved.Unheard) -> None:
        """Does what was left to do after a step whose result nobody heard: its line of metrics, its artifacts."""
        batch, step = unheard.batch, state.step
        told = state.last.metrics if state.last is not None and state.last.step == step else {}
        log.info("step %d was made while nobody listened: its metrics are written now", step)
        values = trainer_metrics(told) | dict(batch.values if batch else {}) | {"progress/step": float(step)}
        if "time/step" in told:
            values["time/trainer"] = told["time/step"]
        self._board.mismatch(told.get("mismatch_kl/all/mean"), batch.tokens if batch else 0)
        self._board.metrics = finite(values)
        self._board.step_done(step, batch.reward if batch else None, None, datetime.now(UTC))
        self._reporter.measured(step, values)
        self._recorder.state(self.state())
        await self._save(step)

    async def _one_step(self) -> None:
        began = self._clock()
        if self._batch is None:
            self._batch = await self._collect()
            # Before it is sent: whoever comes after this process can then tell what the step was made of.
            self._recorder.state(self.state())
        batch = self._batch
        sent = self._clock()
        result = await self._session.step(self.step, batch.samples)
        trained = self._clock()
        self._batch = None
        if batch.groups:
            self._dispatcher.batch_trained()
        else:
            self._dispatcher.stepped(result.step, batch.dealt)
        self.step = result.step
        self._publish(result.policy)
        self._report(batch, result, seconds=trained - began, train_seconds=trained - sent)
        await self._save(result.step)
        self._evaluator.after_step(result.step, result.policy)

    async def _collect(self) -> Batch:
        began = self._clock()
        if self.step < self._cadence.supervised:
            self._check()
            batch = Batch.of_lessons(await self._demonstrations.batch(), self.step)
            batch.seconds = self._clock() - began
            return batch
        waited = 0.0
        while (groups := self._dispatcher.take_batch()) is None:
            self._check()
            waits, before = self._dispatcher.scheduler.waits_for_policy, self._clock()
            await self._dispatcher.changed(0.05 if waits else TICK_SECONDS)
            waited += self._clock() - before if waits else 0.0
        batch = Batch.of_groups(groups, self.step, self._rollouts_per_example)
        batch.seconds, batch.waited_for_policy = self._clock() - began, waited
        return batch

    async def _save(self, step: int) -> None:
        began = self._clock()
        if self._cadence.checkpoint_due(step):
            state = await self._session.checkpoint(step, self.state())
            if state.problem is not None:
                self._board.warn(state.problem)
        if self._cadence.adapter_due(step):
            await self._session.adapter(step, self.state())
        self._save_seconds = self._clock() - began

    async def _finish(self) -> None:
        await self._dispatcher.close()
        await self._evaluator.finish(self._settings.finish_deadline)
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
            if self._batch is not None:
                self._dispatcher.deal.done(self._batch.dealt)
                self._batch = None
            self._board.rewound(state.step)
            self._reporter.rewound()
            self._dispatcher.rewind(state.step)
            if state.step != self.step:
                saved.rewind(self._run_uid, state, self._dispatcher.deal)
            self.step = state.step
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

    def _report(self, batch: Batch, result: StepResult, *, seconds: float, train_seconds: float) -> None:
        facts = StepFacts(
            step=result.step,
            groups=batch.groups,
            trainer=result.metrics,
            times=StepTimes(
                step=seconds,
                collect=batch.seconds,
                waited_for_policy=batch.waited_for_policy,
                train=train_seconds,
                publish=self._publish_seconds,
                save=self._save_seconds,
            ),
            reward=batch.reward,
            trained_tokens=batch.tokens,
            tokens=sum(len(sample["tokenIds"]) for sample in batch.samples),
            samples=len(batch.samples),
            problems=len(batch.dealt),
            in_flight=self._dispatcher.in_flight,
            cancelled=self._dispatcher.cancelled,
            filtered=self._dispatcher.filtered,
            more=batch.values | self._dispatcher.metrics(),
        )
        self._dispatcher.cancelled = self._dispatcher.filtered = 0
        self._reporter.step(facts)
        self._recorder.state(self.state())

    def state(self) -> dict[str, Any]:
        """What a checkpoint and the next process get of this one."""
        state = saved.state_of(self._run_uid, self.step, self._board, self._dispatcher.deal, self._batch)
        return state | {"reporter": self._reporter.state(), "evaluator": self._evaluator.state()}
