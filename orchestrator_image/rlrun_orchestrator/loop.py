"""The run, as a story: collect a batch, make a step, publish the policy, save, report; until there are enough steps.

Only the step itself waits for the trainer. Rollouts go on all the time with the newest policy that is published, the
publication of the next one and the copies for checkpoints run beside the collection of the next batch, and S3 is
written behind the loop's back. How many steps are enough may change until the last artifacts are complete.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlrun.schema.wire import PolicyRef, Problem, RunPhase, SessionState, StepResult

from rlrun_orchestrator import saved
from rlrun_orchestrator.batch import Batch, SentBatch
from rlrun_orchestrator.board import RunProgress
from rlrun_orchestrator.cadence import RunSchedule
from rlrun_orchestrator.demonstrations import Demonstrations
from rlrun_orchestrator.dispatcher import Dispatcher
from rlrun_orchestrator.errors import RunFailed
from rlrun_orchestrator.evaluator import Evaluator
from rlrun_orchestrator.inference import ReplicaPool
from rlrun_orchestrator.publishing import Publication, PublishTimeouts
from rlrun_orchestrator.recorder import Recorder
from rlrun_orchestrator.reporter import Reporter, StepFacts, StepTimes
from rlrun_orchestrator.saving import Saver
from rlrun_orchestrator.status_conditions import StatusConditions
from rlrun_orchestrator.trainer_client import SessionLost
from rlrun_orchestrator.trainer_session import TrainerSession

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
"""Longest sleep while a batch is collected: failures elsewhere are noticed at least that often."""


@dataclass(frozen=True)
class LoopTimeouts:
    """Limits of the loop's own waits, in seconds."""

    finish: float
    """For the final evaluation, and for the publication of the policy that it needs."""
    state_saved: float
    """Until a step is sent although S3 has not yet taken the state that names its batch."""


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
        progress: RunProgress,
        conditions: StatusConditions,
        schedule: RunSchedule,
        timeouts: LoopTimeouts,
        publish_timeouts: PublishTimeouts,
        rollouts_per_example: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.step = 0
        self._run_uid = run_uid
        self._session = session
        self._saver = Saver(session, conditions)
        self._dispatcher = dispatcher
        self._demonstrations = demonstrations
        self._recorder = recorder
        self._reporter = reporter
        self._evaluator = evaluator
        self._progress = progress
        self._conditions = conditions
        self._schedule = schedule
        self._timeouts = timeouts
        self._rollouts_per_example = rollouts_per_example
        self._clock = clock
        self._batch: Batch | None = None
        self._sent: list[SentBatch] = []
        """All that may be what the trainer makes its next step of, those of earlier processes first."""
        self._asked = False
        """Whether the batch in hand has been sent to this trainer."""
        self._began = clock()
        """The step under way."""
        self._publication = Publication(pool, dispatcher, conditions, publish_timeouts, clock)
        self._extended = asyncio.Event()
        schedule.subscribe(self._extended.set)
        self._at_work = False
        """Whether the state is this run's: not before it begins, and not when it is complete."""

    def restore(self, state: saved.State | None) -> None:
        """Continues totals and evaluations from the state of an earlier process."""
        self._reporter.restore((state or {}).get("reporter"))
        self._evaluator.restore((state or {}).get("evaluator"))

    async def run(self, state: SessionState, continued: saved.Continued | None = None) -> None:
        """From the trainer's present step to the last one; `continued` tells what earlier processes left to do.

        Raises RunFailed.
        """
        continued = continued or saved.Continued()
        unheard, self._sent = continued.unheard, list(continued.sent)
        await self._begin(state)
        while True:
            try:
                if unheard is not None:
                    batch, unheard = unheard.batch, None
                    self._catch_up(_result(state), batch)
                    self._save(state.step)
                while not await self._finished():
                    await self._one_step()
                return
            except SessionLost as lost:
                await self._recover(lost)

    async def close(self) -> None:
        """Stops what runs beside the loop; a run that is not complete leaves its state for the next process."""
        await self._saver.close()
        await self._publication.close()
        await self._dispatcher.halt()
        if self._at_work:
            self._recorder.state(self.state())
        await self._dispatcher.close()
        await self._evaluator.close()

    # --- chapters -----------------------------------------------------------------------------------------------------

    async def _begin(self, state: SessionState) -> None:
        self.step, self._publication.policy = state.step, state.policy
        self._progress.rewind(state.step)
        self._dispatcher.rewind(state.step)
        self._at_work = True
        self._keep_state_of(state)
        if self._schedule.is_last(state.step):
            self._progress.phase = RunPhase.running
            await self._owed_evaluation(state)
            return
        await self._start(state.policy)

    async def _start(self, policy: PolicyRef) -> None:
        await self._publication.now(policy)
        self._progress.mark_running()
        self._dispatcher.start()
        self._evaluator.begin(self.step, policy)

    async def _owed_evaluation(self, state: SessionState) -> None:
        """An earlier process may have been cut off in the last evaluation. The run is done all the same."""
        if not self._evaluator.owes(state.step, state.policy):
            return
        try:
            await self._publication.now(state.policy, self._timeouts.finish)
        except RunFailed as failure:
            message = f"the final policy is not evaluated: {failure.problem.message}"
            self._conditions.set_waiting("policy", None)
            self._conditions.add_warning(Problem(reason="EvaluationTimeout", message=message[:500]))
            return
        self._evaluator.begin(state.step, state.policy)

    async def _one_step(self) -> None:
        policy = self._publication.policy
        if not self._dispatcher.started and policy is not None:
            await self._start(policy)
        self._began = self._clock()
        if self._batch is None:
            self._batch = await self._collect()
            self._sent.append(self._batch.sent())
            # Before it is sent: whoever comes after this process can then tell what the step was made of.
            self._recorder.state(self.state())
        batch, complete, self._asked = self._batch, self._clock(), False
        await self._saver.finished()
        copied = self._clock()
        await self._extend_trainer()
        await self._recorder.recorded(self._timeouts.state_saved)
        sent, self._asked = self._clock(), True
        result = await self._session.step(self.step, batch.body)
        self._settle(batch, result, train=self._clock() - sent, save=copied - complete)

    def _settle(self, batch: Batch | None, result: StepResult, *, train: float = 0.0, save: float = 0.0) -> None:
        """The trainer has made the step, of `batch` or of one that an earlier process had sent."""
        sent, self._batch, self._sent = self._sent, None, []
        ours = batch if batch is not None and result.batch_id in ("", batch.id) else None
        before = next((one for one in sent if one.id == result.batch_id), None)
        if ours is None:
            self._put_back(batch, before, result.step)
        elif ours.groups:
            self._dispatcher.batch_trained()
        else:
            self._dispatcher.stepped(result.step, ours.dealt)
        self.step = result.step
        self._check()
        self._publication.start(result.policy)
        if ours is not None:
            self._report(ours, result, train, save)
        else:
            self._catch_up(result, before)
        self._save(result.step)
        self._evaluator.after_step(result.step, result.policy)

    def _put_back(self, batch: Batch | None, made_of: SentBatch | None, step: int) -> None:
        log.info("step %d is made of a batch that an earlier process sent: what there is waits for the next", step)
        if batch is not None and not batch.groups:
            self._dispatcher.deal.put_back(batch.dealt)
        self._dispatcher.another_batch_trained(step, made_of)

    def _catch_up(self, result: StepResult, batch: SentBatch | None) -> None:
        """A step that was made while nobody listened has its line of metrics, with what is known of its batch."""
        log.info("step %d was made while nobody listened: its metrics are written now", result.step)
        self._reporter.late(result, batch)
        self._recorder.state(self.state())

    async def _extend_trainer(self) -> None:
        """Send a raised number of steps to the trainer before its next step."""
        if not self._session.lags_behind_schedule:
            return
        state = await self._session.extend()
        if state.step != self.step:
            raise SessionLost(f"it was replaced while it was told of more steps, and is at step {state.step}")

    async def _collect(self) -> Batch:
        began = self._clock()
        if self.step < self._schedule.supervised_steps:
            self._check()
            batch = Batch.of_lessons(await self._demonstrations.batch(), self.step)
            batch.seconds = self._clock() - began
            return await asyncio.to_thread(batch.named)
        waited = 0.0
        while (groups := self._dispatcher.take_batch()) is None:
            self._check()
            waits, before = self._dispatcher.scheduler.waits_for_policy, self._clock()
            await self._dispatcher.changed(0.05 if waits else TICK_SECONDS)
            waited += self._clock() - before if waits else 0.0
        batch = Batch.of_groups(groups, self.step, self._rollouts_per_example)
        batch.seconds, batch.waited_for_policy = self._clock() - began, waited
        # In a thread, so that the gateway goes on meanwhile.
        return await asyncio.to_thread(batch.named)

    def _save(self, step: int) -> None:
        self._saver.start(
            step,
            self.state(),
            checkpoint=self._schedule.checkpoint_due(step),
            adapter=self._schedule.adapter_due(step),
            last=self._schedule.is_last(step),
        )

    async def _finished(self) -> bool:
        """Whether the run is complete, with all that has to be there at its end. False as soon as there are more steps
        to make, be it that they are wanted only now.
        """
        if not self._schedule.is_last(self.step):
            return False
        self._extended.clear()
        ending = asyncio.create_task(self._end(), name="end")
        more = asyncio.create_task(self._extended.wait(), name="more steps")
        try:
            await asyncio.wait({ending, more}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (ending, more):
                task.cancel()
            await asyncio.gather(ending, more, return_exceptions=True)
        if not self._schedule.is_last(self.step):
            return False
        ending.result()
        self._schedule.complete()
        self._progress.phase = RunPhase.completed
        await self._dispatcher.close()
        self._recorder.state(self.state())
        self._at_work = False
        return True

    async def _end(self) -> None:
        await self._saver.finished()
        await self._evaluator.finish(self._timeouts.finish)
        await self._session.finish(self.step, self.state())

    async def _recover(self, lost: SessionLost) -> None:
        """The trainer was replaced: its session continues from a checkpoint, and so does everything else."""
        log.warning("the trainer has lost the session: %s", lost)
        await self._saver.close()
        state = await self._session.open()
        self._progress.trainer_restarts += 1
        batch = self._batch
        # One that this trainer was not asked for yet may have been made by the one before it, of an earlier batch.
        maybe = [one for one in self._sent if self._asked or batch is None or one.id != batch.id]
        if state.step == self.step + 1 and maybe:
            log.info("the trainer has saved step %d before it ended", state.step)
            result = _result(state)
            self._settle(batch, result.model_copy(update={"batch_id": result.batch_id or maybe[-1].id}))
        elif state.step == self.step and batch is not None:
            log.info("the trainer is still at step %d: the batch is sent again", state.step)
            self._sent = [batch.sent()]
            self._publication.start(state.policy)
        else:
            await self._rewind(state)
            self._publication.start(state.policy)
        self._keep_state_of(state)

    async def _rewind(self, state: SessionState) -> None:
        log.info("back from step %d to step %d", self.step, state.step)
        kept = await self._recorder.state_kept_for(state.step) if state.step != self.step else None
        if self._batch is not None:
            self._dispatcher.deal.done(self._batch.dealt)
        self._batch, self._sent = None, []
        self._progress.rewind(state.step)
        self._reporter.rewound()
        self._dispatcher.rewind(state.step)
        if state.step != self.step and not saved.rewind(self._run_uid, state, kept, self._dispatcher.deal):
            log.warning("the draw of step %d is not known: it goes on where it is", state.step)
        self.step = state.step

    def _keep_state_of(self, state: SessionState) -> None:
        """For whoever resumes from the same checkpoint once more."""
        if saved.lacks_state(self._run_uid, state):
            self._recorder.state_of_step(state.step, self.state())

    # --- beside the steps ---------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raises what went wrong beside the loop."""
        if self._dispatcher.failure is not None:
            raise self._dispatcher.failure
        self._publication.check()

    def _report(self, batch: Batch, result: StepResult, train: float, save: float) -> None:
        facts = StepFacts(
            step=result.step,
            groups=batch.groups,
            trainer=result.metrics,
            times=StepTimes(
                step=self._clock() - self._began,
                collect=batch.seconds,
                waited_for_policy=batch.waited_for_policy,
                train=train,
                publish=self._publication.seconds,
                save=save,
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
        state = saved.state_of(self._run_uid, self.step, self._progress, self._dispatcher.deal, self._sent)
        return state | {"reporter": self._reporter.state(), "evaluator": self._evaluator.state()}


def _result(state: SessionState) -> StepResult:
    """Of the step that led to the trainer's, as far as it knows it."""
    if state.last is not None and state.last.step == state.step:
        return state.last
    return StepResult(step=state.step, policy=state.policy, metrics={})
