"""Training loop: collect a batch, take a step, publish the policy, save, and report, until `maxSteps` steps are done.

Only the step itself waits for the trainer. Rollouts continue with the newest published policy; the next publication and
checkpoint copies run while the next batch is collected, and uploads to S3 run in the background. The number of steps
may be increased until the last artifacts are complete.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from rlrun.constants import Reason
from rlrun.protocol.orchestrator import RunPhase
from rlrun.protocol.policy import PolicyRef
from rlrun.protocol.problem import Problem
from rlrun.protocol.trainer import SessionState, StepResult
from rlrun.service.errors import FatalError

from rlrun_orchestrator.data.example_sampler import SampledExample
from rlrun_orchestrator.data.schedule import RunSchedule
from rlrun_orchestrator.data.sent_batch import SentBatch
from rlrun_orchestrator.evaluation.evaluator import Evaluator
from rlrun_orchestrator.inference.replica_pool import ReplicaPool
from rlrun_orchestrator.reporting.step_reporter import StepReport, StepReporter, StepTimings
from rlrun_orchestrator.rollouts.demonstrations import DemonstrationLoader
from rlrun_orchestrator.rollouts.dispatcher import Dispatcher
from rlrun_orchestrator.status.run_progress import RunProgress
from rlrun_orchestrator.status.status_conditions import StatusConditions
from rlrun_orchestrator.storage.recovery import (
    Acknowledge,
    Continue,
    Decision,
    Exact,
    KnownStates,
    Resend,
    Rewind,
    checkpoint_lacks_state,
    choose_sampler_state,
    decide,
    restore_sampler,
    trained_batch,
)
from rlrun_orchestrator.storage.resume_state import ResumeState
from rlrun_orchestrator.storage.run_recorder import RunRecorder
from rlrun_orchestrator.training.batch import Batch
from rlrun_orchestrator.training.checkpoint_requester import CheckpointRequester
from rlrun_orchestrator.training.policy_publisher import PolicyPublisher, PublishTimeouts
from rlrun_orchestrator.training.trainer_client import SessionLost, Superseded
from rlrun_orchestrator.training.trainer_session import TrainerSession

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
"""Maximum sleep in seconds while a batch is collected, so that failures elsewhere are noticed."""


@dataclass(frozen=True)
class LoopTimeouts:
    """Time limits for the training loop's own waits, in seconds."""

    finish: float
    """Time limit for the final evaluation, and for the publication of the evaluated policy."""
    state_saved: float
    """Maximum time that a step waits for S3 to store the state that names the step's batch."""


class RunLoop:
    """Training loop. Requires an open trainer session, ready environments and watched replicas."""

    def __init__(
        self,
        run_uid: str,
        session: TrainerSession,
        dispatcher: Dispatcher,
        demonstrations: DemonstrationLoader,
        pool: ReplicaPool,
        recorder: RunRecorder,
        reporter: StepReporter,
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
        self._checkpoint_requester = CheckpointRequester(session, conditions)
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
        """Batches that the trainer may use for its next step. Batches sent by earlier processes come first."""
        self._batch_sent = False
        """True if the current batch has been sent to the current trainer."""
        self._began = clock()
        """Start time of the current step."""
        self._policy_publisher = PolicyPublisher(pool, dispatcher, conditions, publish_timeouts, clock)
        self._extended = asyncio.Event()
        schedule.subscribe(self._extended.set)
        self._owns_state = False
        """True while this process may write the state in S3: from its start until the run is complete, or until a newer
        process has opened the trainer's session.
        """

    async def run(self, trainer: SessionState, states: KnownStates) -> None:
        """Train from the trainer's current step to the last step. `states` were saved by earlier processes of the run,
        or by the run from whose checkpoint it starts. Raises FatalError.
        """
        self._resume(trainer, states)
        await self._begin(trainer)
        while True:
            try:
                while not await self._finished():
                    await self._one_step()
                return
            except SessionLost as lost:
                await self._recover(lost)
            except Superseded:
                # The state in S3 belongs to the other process.
                self._owns_state = False
                raise

    async def close(self) -> None:
        """Stop all background work. If the run is incomplete, its state is saved for the next process."""
        await self._checkpoint_requester.close()
        await self._policy_publisher.close()
        await self._dispatcher.stop_dispatching()
        if self._dispatcher.failure is not None:
            # The untrained groups show why no batch was complete.
            self._reporter.record_untrained(self.step + 1, *self._dispatcher.untrained.take())
        if self._owns_state:
            self._save_state()
        await self._dispatcher.close()
        await self._evaluator.close()

    # --- phases -------------------------------------------------------------------------------------------------------

    def _resume(self, trainer: SessionState, states: KnownStates) -> None:
        """Continue where the earlier processes of the run stopped."""
        decision: Decision
        newest = states.newest
        if newest is None:
            self.step, decision = trainer.step, Rewind(trainer.step)
        else:
            self.step, self._sent = newest.step, list(newest.sent)
            self._reporter.restore(newest.reporter)
            self._evaluator.restore(newest.evaluator)
            restore_sampler(self._dispatcher.sampler, Exact(newest), newest.step)
            decision = decide(trainer, self._sent, at_step=newest.step, in_hand=None, posted=True)
        self._progress.rewind(self.step)
        self._dispatcher.rewind(self.step)
        self._owns_state = True
        self._follow(decision, trainer, states)
        self._save_checkpoint_state(trainer.step, states)

    async def _begin(self, trainer: SessionState) -> None:
        self._policy_publisher.policy = trainer.policy
        if self._schedule.is_last(self.step):
            self._progress.phase = RunPhase.running
            await self._finish_final_evaluation(trainer)
            return
        await self._start(trainer.policy)

    async def _start(self, policy: PolicyRef) -> None:
        await self._policy_publisher.publish_and_wait(policy)
        self._progress.mark_running()
        self._dispatcher.start()
        self._evaluator.start(self.step, policy)

    async def _finish_final_evaluation(self, state: SessionState) -> None:
        """Complete a final evaluation that an earlier process did not finish. The run itself is already complete."""
        if not self._evaluator.has_unfinished(state.step, state.policy):
            return
        try:
            await self._policy_publisher.publish_and_wait(state.policy, self._timeouts.finish)
        except FatalError as failure:
            message = f"the final policy is not evaluated: {failure.problem.message}"
            self._conditions.set_waiting("policy", None)
            self._conditions.add_warning(Problem(reason=Reason.EVALUATION_TIMEOUT, message=message[:500]))
            return
        self._evaluator.start(state.step, state.policy)

    async def _one_step(self) -> None:
        policy = self._policy_publisher.policy
        if not self._dispatcher.started and policy is not None:
            await self._start(policy)
        self._began = self._clock()
        if self._batch is None:
            self._batch = await self._collect()
            self._sent.append(self._batch.to_record())
            # Save before sending, so that the next process can tell which batch was used for the step.
            self._save_state()
        batch, complete, self._batch_sent = self._batch, self._clock(), False
        await self._checkpoint_requester.wait_until_idle()
        copied = self._clock()
        await self._extend_trainer()
        await self._recorder.wait_until_saved(self._timeouts.state_saved)
        sent, self._batch_sent = self._clock(), True
        assert batch.body is not None
        result = await self._session.step(self.step, batch.body)
        made_of = trained_batch(result, self._sent)
        ours = self._acknowledge(result, made_of)
        self._check()
        self._policy_publisher.publish_in_background(result.policy)
        self._conclude(ours, made_of, result, train=self._clock() - sent, save=copied - complete)
        self._evaluator.after_step(result.step, result.policy)

    def _acknowledge(self, result: StepResult, made_of: SentBatch | None) -> Batch | None:
        """Advance to the step that the trainer made with the batch `made_of`, or with an unknown batch if it is None.
        Returns the current batch if the trainer used it. Otherwise returns None, and the batch's groups wait for a
        later step.
        """
        batch, self._batch, self._sent = self._batch, None, []
        self.step = result.step
        if batch is None or made_of is None or batch.id != made_of.id:
            if batch is not None:
                log.info("the trainer ran step %d on a different batch; the current batch is used later", result.step)
            self._demonstrations.return_batch()
            self._dispatcher.return_batch(result.step, made_of)
            return None
        if batch.groups:
            self._dispatcher.complete_batch()
        else:
            self._demonstrations.complete_batch()
            self._dispatcher.advance(result.step)
        return batch

    def _conclude(
        self,
        batch: Batch | None,
        made_of: SentBatch | None,
        result: StepResult,
        *,
        train: float = 0.0,
        save: float = 0.0,
    ) -> None:
        """Report the step's metrics, and request the checkpoint and adapter that are due. If `batch` is None, the
        metrics are incomplete.
        """
        if batch is not None:
            self._report(batch, result, train, save)
        else:
            log.info("step %d was not observed by this process; its metrics are incomplete", result.step)
            self._reporter.report_unobserved(result, made_of)
            self._save_state()
        if result.recovery_copy:
            self._recorder.save_copy_state(self.state().to_json())
        self._save(result.step)

    async def _extend_trainer(self) -> None:
        """Send an increased number of steps to the trainer before its next step."""
        if not self._session.lags_behind_schedule:
            return
        state = await self._session.extend()
        if state.step != self.step:
            raise SessionLost(f"the trainer was replaced while maxSteps was increased, and is at step {state.step}")

    async def _collect(self) -> Batch:
        began = self._clock()
        if self.step < self._schedule.supervised_steps:
            self._check()
            batch = Batch.from_demonstrations(await self._demonstrations.batch(), self.step)
            batch.seconds = self._clock() - began
            return await asyncio.to_thread(batch.finalize)
        waited = 0.0
        while (groups := self._dispatcher.take_batch()) is None:
            self._check()
            waits, before = self._dispatcher.tracker.waits_for_policy, self._clock()
            await self._dispatcher.wait_for_change(0.05 if waits else TICK_SECONDS)
            waited += self._clock() - before if waits else 0.0
        batch = Batch.from_groups(groups, self.step, self._rollouts_per_example)
        batch.seconds, batch.waited_for_policy = self._clock() - began, waited
        # Run in a thread, because `finalize` would block the gateway.
        return await asyncio.to_thread(batch.finalize)

    def _save(self, step: int, complete: SessionState | None = None) -> None:
        """Request the checkpoint and adapter that are due after `step` and are not complete yet.

        A trainer that starts from a recovery copy may lack both, because its predecessor did not upload them in time.
        """
        if step == 0:
            return
        checkpoints, adapters = (complete.checkpoints, complete.adapters) if complete is not None else ([], [])
        self._checkpoint_requester.start(
            step,
            self.state().to_json(),
            checkpoint=self._schedule.checkpoint_due(step) and step not in checkpoints,
            adapter=self._schedule.adapter_due(step) and step not in adapters,
            last=self._schedule.is_last(step),
        )

    async def _finished(self) -> bool:
        """Return True once the run and its artifacts are complete. Returns False if the number of steps is increased
        before that.
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
        self._save_state()
        self._owns_state = False
        return True

    async def _end(self) -> None:
        await self._checkpoint_requester.wait_until_idle()
        await self._evaluator.finish(self._timeouts.finish)
        await self._session.finish(self.step, self.state().to_json())

    # --- recovery -----------------------------------------------------------------------------------------------------

    async def _recover(self, lost: SessionLost) -> None:
        """Follow a replaced trainer, whose session continues from a checkpoint."""
        log.warning("the trainer has lost the session: %s", lost)
        await self._checkpoint_requester.close()
        trainer = await self._session.open()
        self._progress.trainer_restarts += 1
        in_hand = self._batch.to_record() if self._batch is not None else None
        decision = decide(trainer, self._sent, at_step=self.step, in_hand=in_hand, posted=self._batch_sent)
        states = await self._known_states(trainer)
        # The trainer to which other batches were sent no longer exists.
        self._sent = [in_hand] if in_hand is not None else []
        self._follow(decision, trainer, states)
        self._check()
        self._policy_publisher.publish_in_background(trainer.policy)
        if isinstance(decision, Acknowledge):
            self._evaluator.after_step(trainer.step, trainer.policy)
        self._save_checkpoint_state(trainer.step, states)

    async def _known_states(self, trainer: SessionState) -> KnownStates:
        checkpoint = ResumeState.parse(trainer.orchestrator_state, "the trainer's checkpoint")
        kept = None
        if trainer.step != self.step and checkpoint_lacks_state(self._run_uid, trainer.step, checkpoint):
            stored = await self._recorder.load_checkpoint_state(trainer.step)
            kept = ResumeState.parse(stored, f"the record of step {trainer.step}")
        return KnownStates(checkpoint, self.state(), kept)

    def _follow(self, decision: Decision, trainer: SessionState, states: KnownStates) -> None:
        """Advance or return to the trainer's step, according to the decision."""
        step = trainer.step
        match decision:
            case Continue():
                log.info("the trainer is at step %d, like the run", self.step)
                self._save(step, trainer)
            case Resend(batch_id):
                log.info("the trainer is still at step %d; sending batch %s again", self.step, batch_id)
                self._save(step, trainer)
            case Acknowledge(result, made_of):
                nothing_in_hand = self._batch is None
                ours = self._acknowledge(result, made_of)
                if made_of is None and nothing_in_hand:
                    self._restore_sampler(step, states)
                self._conclude(ours, made_of, result)
            case Rewind(_, result):
                log.info("moving from step %d to the trainer's step %d", self.step, step)
                forward = step > self.step
                self._rewind(step)
                self._restore_sampler(step, states)
                if forward and result is not None:
                    self._conclude(None, None, result)
                else:
                    self._save(step, trainer)

    def _rewind(self, step: int) -> None:
        self._batch, self._sent = None, []
        self._demonstrations.complete_batch()
        self._progress.rewind(step)
        self._reporter.on_rewind()
        self._dispatcher.rewind(step)
        self.step = step

    def _restore_sampler(self, step: int, states: KnownStates) -> None:
        choice = choose_sampler_state(self._run_uid, step, states)
        restore_sampler(self._dispatcher.sampler, choice, step, self._outstanding())

    def _save_checkpoint_state(self, step: int, states: KnownStates) -> None:
        """Store the state that a checkpoint lacks, for the next process that resumes from it."""
        if checkpoint_lacks_state(self._run_uid, step, states.checkpoint):
            self._recorder.save_checkpoint_state(step, self.state().to_json())

    # --- details ------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise the exception of a failed background task."""
        if self._dispatcher.failure is not None:
            raise self._dispatcher.failure
        self._policy_publisher.raise_if_failed()

    def _report(self, batch: Batch, result: StepResult, train: float, save: float) -> None:
        untrained, untrained_omitted = self._dispatcher.untrained.take()
        report = StepReport(
            step=result.step,
            groups=batch.groups,
            trainer=result.metrics,
            times=StepTimings(
                step=self._clock() - self._began,
                collect=batch.seconds,
                waited_for_policy=batch.waited_for_policy,
                train=train,
                publish=self._policy_publisher.seconds,
                save=save,
            ),
            reward=batch.reward,
            trained_tokens=batch.tokens,
            tokens=sum(len(sample.token_ids) for sample in batch.samples),
            samples=len(batch.samples),
            problems=len(batch.examples),
            untrained=untrained,
            untrained_omitted=untrained_omitted,
            more=batch.metrics | self._dispatcher.metrics(),
        )
        self._reporter.step(report)
        self._save_state()

    def state(self) -> ResumeState:
        """Return the state for checkpoints and the next process."""
        return ResumeState(
            run=self._run_uid,
            step=self.step,
            reward=self._progress.newest_reward,
            board=self._progress.to_state(),
            deal=self._dispatcher.sampler.snapshot(self._outstanding()),
            sent=self._sent,
            reporter=self._reporter.state(),
            evaluator=self._evaluator.state(),
        )

    def _outstanding(self) -> list[SampledExample]:
        """Return the examples whose groups or demonstrations have not been trained on yet."""
        return [*self._dispatcher.tracker.outstanding(), *self._demonstrations.outstanding()]

    def _save_state(self) -> None:
        self._recorder.save_state(self.state().to_json())
