"""Evaluation and validation during training: fixed examples, the policy of one step, and rewards as metrics.

Both use the gateway like training, but are pinned to the evaluated policy and record no tokens. Validation uses the
training environment's sampling parameters; evaluation may override the run's. Combined, they may use a fixed fraction
of training's maximum number of rollouts in flight, so that training does not slow down. Once training is over, each may
use the full maximum. One round of each kind runs at a time: if an interval is shorter than a round, rounds are skipped
with a warning, except for the round of the last policy. Results are reported immediately, under the step whose policy
was evaluated. A failed evaluation causes a warning and never fails the run.
"""

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from rlrun.api.run_sections.rollouts import SamplingOverrides
from rlrun.constants import Reason
from rlrun.protocol.environment import GroupRequest, GroupResult, RolloutResult, Split
from rlrun.protocol.policy import PolicyKind, PolicyRef
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import EnvironmentUse, ResolvedRun
from rlrun.service.errors import RequestError, ServiceUnavailable
from rlrun.storage.samples.record import SampleSplit

from rlrun_orchestrator.data.example_buffer import Example
from rlrun_orchestrator.data.schedule import RunSchedule
from rlrun_orchestrator.data.scoring import add_cause, first_episodes, measured_group
from rlrun_orchestrator.evaluation.metrics import evaluation_values, validation_total, validation_values
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroup, LiveGroups
from rlrun_orchestrator.inference.gateway.sampling_rules import SamplingRules
from rlrun_orchestrator.rollouts.environments import EnvironmentPool, PooledEnvironment
from rlrun_orchestrator.rollouts.fair_semaphore import FairSemaphore
from rlrun_orchestrator.status.run_progress import RunProgress
from rlrun_orchestrator.status.status_conditions import StatusConditions
from rlrun_orchestrator.storage.sample_records import StepRollouts

log = logging.getLogger(__name__)

EVALUATION_SHARE = 0.25
"""Maximum number of evaluation and validation rollouts in flight, combined, as a fraction of training's maximum."""
MAX_ATTEMPTS = 3
"""Maximum number of requests for one example if its environment becomes unreachable."""
RESULTS_KEPT = 64
"""Number of newest completed evaluations that are remembered and not repeated."""
MESSAGE_LIMIT = 500

Report = Callable[[int, dict[str, float]], None]
"""Callback for results: the step whose policy was evaluated, and the metrics."""
Store = Callable[[StepRollouts], None]
"""Callback that stores the rollouts of an evaluation on one environment."""


@dataclass(frozen=True)
class EvaluationTask:
    """Evaluation or validation of the policy on one environment, every `interval` steps."""

    use: EnvironmentUse
    environment: str
    interval: int
    examples: int
    """Number of examples. -1 means all."""
    rollouts: int
    sampling: tuple[SamplingOverrides | None, ...] = ()
    """Overrides of the run's sampling section in the order of application: first eval's, then the environment's."""

    def due(self, step: int, max_steps: int) -> bool:
        """Return True if the task is due: after every `interval` steps; evaluations also after the last step."""
        if step >= max_steps and self.use is EnvironmentUse.eval:
            return True
        return step > 0 and step % self.interval == 0

    def values(self, results: Sequence[Sequence[RolloutResult]]) -> dict[str, float]:
        """Return the metrics of all examples."""
        make = validation_values if self.use is EnvironmentUse.train else evaluation_values
        return make(self.environment, self.rollouts, results)

    @property
    def split(self) -> SampleSplit:
        """Split under which the rollouts are stored in S3."""
        return SampleSplit.val if self.use is EnvironmentUse.train else SampleSplit.eval

    @property
    def base_name(self) -> str:
        """Prefix of the metric names."""
        return f"{'val_reward' if self.use is EnvironmentUse.train else 'eval'}/{self.environment}"


@dataclass(frozen=True)
class EvaluatedPolicy:
    """Policy to evaluate. If `base` is True, the base model is evaluated instead."""

    policy: PolicyRef
    base: bool = False

    @property
    def name(self) -> str:
        """Name of the evaluated weights. A step that is repeated after a restart has new weights and is evaluated
        again.
        """
        return "base" if self.base else self.policy.name


@dataclass(frozen=True)
class EvaluatorSettings:
    """Parameters of every evaluation request, and limits."""

    gateway_url: str
    rules: SamplingRules
    """Sampling rules of training."""
    rollouts_in_flight: int
    """Maximum number of rollouts in flight in training: batchSize times oversamplingFactor."""
    base_model: bool
    """Evaluate the base model before the first step."""
    warm_start: bool
    """True if the run starts from another run's checkpoint, so that its first policy is not the base model."""


def evaluation_tasks(run: ResolvedRun) -> list[EvaluationTask]:
    """Return the run's tasks: `eval` on separate environments, `val` on the training environments."""
    spec, tasks = run.spec, []
    if spec.eval is not None:
        for env in spec.eval.env:
            examples = env.num_examples if env.num_examples is not None else spec.eval.num_examples
            rollouts = env.rollouts_per_example or spec.eval.rollouts_per_example
            name = env.effective_name
            overrides = (spec.eval.sampling, env.sampling)
            tasks.append(EvaluationTask(EnvironmentUse.eval, name, spec.eval.interval, examples, rollouts, overrides))
    if spec.val is not None:
        share, more = divmod(spec.val.num_examples, len(spec.env))
        for index, train in enumerate(spec.env):
            name, examples = train.effective_name, max(1, share + (index < more))
            interval, rollouts = spec.val.interval, spec.val.rollouts_per_example
            own = (train.sampling,)
            tasks.append(EvaluationTask(EnvironmentUse.train, name, interval, examples, rollouts, own))
    return tasks


class Evaluator:
    """Runs the evaluations that are due."""

    def __init__(
        self,
        wanted: Sequence[EvaluationTask],
        environments: Mapping[EnvironmentUse, EnvironmentPool],
        groups: LiveGroups,
        progress: RunProgress,
        conditions: StatusConditions,
        schedule: RunSchedule,
        settings: EvaluatorSettings,
        report: Report,
        store_rollouts: Store,
        save_state: Callable[[], None],
    ) -> None:
        """`save_state` is called whenever a completed evaluation has changed `state`."""
        self._evaluation_tasks = wanted
        self._environments = environments
        self._groups = groups
        self._progress = progress
        self._conditions = conditions
        self._schedule = schedule
        self._settings = settings
        self._report = report
        self._store_rollouts = store_rollouts
        self._save_state = save_state
        kinds = {m.use for m in wanted}
        limit = int(settings.rollouts_in_flight * EVALUATION_SHARE / max(1, len(kinds)))
        # Use one semaphore per kind, so that a long evaluation does not delay short validations.
        self._limit = max(1, limit)
        self._semaphores = {use: FairSemaphore(self._limit) for use in kinds}
        self._turns = {m.base_name: asyncio.Lock() for m in wanted}
        self._rounds: dict[EnvironmentUse, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_progress: set[tuple[str, str]] = set()
        self._measured: deque[tuple[str, str]] = deque(maxlen=RESULTS_KEPT)
        """Completed evaluations, as (base name of the metrics, policy)."""

    # --- called by the loop -------------------------------------------------------------------------------------------

    def start(self, step: int, policy: PolicyRef) -> None:
        """Start the evaluations before the first step: evaluations of the base model, or evaluations due at `step` that
        an earlier process did not complete.
        """
        if step > 0:
            self.after_step(step, policy)
        elif self._settings.base_model:
            wanted = [m for m in self._evaluation_tasks if m.use is EnvironmentUse.eval]
            if self._settings.warm_start and policy.kind is PolicyKind.weights:
                message = "the base model is not evaluated, because the engines serve the weights from which the run "
                message += "starts. To evaluate it, run an evaluation without checkpointId. If you do not need it, set "
                message += "eval.evalBaseModel to false"
                self._conditions.add_warning(Problem(reason=Reason.BASE_MODEL_NOT_MEASURED, message=message))
                return
            # A new adapter changes nothing yet, so version 0 is the base model.
            self._start(wanted, 0, EvaluatedPolicy(policy, base=self._settings.warm_start))

    def after_step(self, step: int, policy: PolicyRef) -> None:
        """Start the evaluations that are due with the policy after `step` steps."""
        self._start(self._due_tasks(step), step, EvaluatedPolicy(policy))

    def has_unfinished(self, step: int, policy: PolicyRef) -> bool:
        """Return True if an evaluation that is due at `step` is neither completed nor in progress."""
        return any(self._is_new(m, EvaluatedPolicy(policy)) for m in self._due_tasks(step))

    async def finish(self, deadline: float) -> None:
        """Wait at most `deadline` seconds for running evaluations, and cancel the rest with a warning."""
        if not self._tasks:
            return
        self._set_limits(self._settings.rollouts_in_flight)
        problem = Problem(reason=Reason.WAITING_FOR_EVALUATION, message="the final policy is being evaluated")
        self._conditions.set_waiting("evaluation", problem)
        try:
            _, late = await asyncio.wait(self._tasks, timeout=deadline)
        finally:
            # If the run was extended, the evaluation continues during training.
            self._conditions.set_waiting("evaluation", None)
            self._set_limits(self._limit)
        if late:
            names = ", ".join(sorted(task.get_name() for task in late))
            message = f"cancelled after {deadline:.0f} s: {names}. Lower eval.numExamples or val.numExamples"
            self._conditions.add_warning(Problem(reason=Reason.EVALUATION_TIMEOUT, message=message[:MESSAGE_LIMIT]))
        await self.close()

    async def close(self) -> None:
        """Cancel all running evaluations."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def state(self) -> dict[str, Any]:
        """Return the completed evaluations as JSON types, for the checkpoint."""
        return {"measured": [list(pair) for pair in self._measured]}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Continue from `state`. A malformed state is ignored."""
        try:
            self._measured.extend((str(name), str(evaluated)) for name, evaluated in (state or {}).get("measured", []))
        except (TypeError, ValueError) as error:
            log.warning("ignoring the list of completed evaluations, because it is malformed: %s", error)

    def _set_limits(self, rollouts: int) -> None:
        for semaphore in self._semaphores.values():
            semaphore.limit = rollouts

    # --- rounds -------------------------------------------------------------------------------------------------------

    def _due_tasks(self, step: int) -> list[EvaluationTask]:
        return [m for m in self._evaluation_tasks if m.due(step, self._schedule.max_steps)]

    def _is_new(self, measurement: EvaluationTask, evaluated: EvaluatedPolicy) -> bool:
        key = (measurement.base_name, evaluated.name)
        return key not in self._measured and key not in self._in_progress

    def _start(self, due: Sequence[EvaluationTask], step: int, evaluated: EvaluatedPolicy) -> None:
        for use in EnvironmentUse:
            wanted = [m for m in due if m.use is use and self._is_new(m, evaluated)]
            if not wanted:
                continue
            kind = "evaluation" if use is EnvironmentUse.eval else "validation"
            before = self._rounds.get(use)
            busy = before is not None and not before.done()
            if busy and step < self._schedule.max_steps:
                field = "eval" if use is EnvironmentUse.eval else "val"
                message = f"the {kind} of step {step} was skipped, because the previous one was still running: raise "
                message += f"{field}.interval or lower {field}.numExamples"
                self._conditions.add_warning(Problem(reason=Reason.EVALUATION_SKIPPED, message=message))
                continue
            self._in_progress |= {(m.base_name, evaluated.name) for m in wanted}
            round = self._round(wanted, step, evaluated, before if busy else None)
            task = asyncio.create_task(round, name=f"{kind} of step {step}")
            self._rounds[use] = task
            self._tasks.add(task)
            task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("%s failed", task.get_name(), exc_info=error)
            message = f"{task.get_name()}: {type(error).__name__}: {error}. See the orchestrator's log"
            self._conditions.add_warning(Problem(reason=Reason.EVALUATION_FAILED, message=message[:MESSAGE_LIMIT]))

    async def _round(
        self,
        wanted: Sequence[EvaluationTask],
        step: int,
        evaluated: EvaluatedPolicy,
        before: "asyncio.Task[None] | None",
    ) -> None:
        # Keep the policy loaded between two groups, because an adapter without an open group may be unloaded.
        pin = self._open(evaluated)
        try:
            if before is not None:
                await asyncio.wait({before})
            results = await asyncio.gather(*(self._measure(m, step, evaluated) for m in wanted))
            if wanted[0].use is EnvironmentUse.train:
                self._report_results(step, validation_total([group for groups in results for group in groups]))
        finally:
            self._groups.close(pin.id)
            self._in_progress -= {(m.base_name, evaluated.name) for m in wanted}

    async def _measure(
        self, measurement: EvaluationTask, step: int, evaluated: EvaluatedPolicy
    ) -> list[list[RolloutResult]]:
        member = self._environments[measurement.use].environments[measurement.environment]
        known = member.info.eval_examples if member.info else 0
        count = known if measurement.examples < 0 else min(measurement.examples, known)
        began = time.monotonic()
        groups = await asyncio.gather(*(self._group(member, measurement, index, evaluated) for index in range(count)))
        results = [group.rollouts if group is not None else [] for group in groups]
        base = measurement.base_name
        values = measurement.values(results) | {f"{base}/seconds": time.monotonic() - began}
        if evaluated.policy.kind is PolicyKind.weights:
            # An engine holds one set of weights, so rollouts after the next publication were sampled from the new
            # weights.
            values[f"{base}/drift"] = float(max(0, self._progress.policy_version - evaluated.policy.version))
        if values[f"{base}/error"] == 0.0:
            self._conditions.clear_warning(Reason.EVALUATION_ERRORS)
        self._measured.append((base, evaluated.name))
        self._report_results(step, values)
        measured = [
            measured_group(group, Example(measurement.environment, index), evaluated.policy.version)
            for index, group in enumerate(groups)
            if group is not None
        ]
        if measured:
            self._store_rollouts(StepRollouts(step, measurement.split, measured, measurement.environment))
        self._save_state()
        return results

    def _report_results(self, step: int, values: dict[str, float]) -> None:
        log.info("evaluated the policy of step %d: %s", step, values)
        self._report(step, values)

    # --- one example --------------------------------------------------------------------------------------------------

    async def _group(
        self, member: PooledEnvironment, measurement: EvaluationTask, index: int, evaluated: EvaluatedPolicy
    ) -> GroupResult | None:
        async with AsyncExitStack() as held:
            # Only one group of an environment waits at a time, so that other environments can use the rest of the
            # quota. The group waits for the quota first, so that training can use the environment's slots until then.
            async with self._turns[measurement.base_name]:
                await held.enter_async_context(self._semaphores[measurement.use].acquire(measurement.rollouts))
                await held.enter_async_context(member.wait_for_slots(measurement.rollouts))
            problem = Problem(reason=Reason.UNREACHABLE, message="the environment is unreachable")
            for _ in range(MAX_ATTEMPTS):
                if member.recovery_task is not None and not member.recovery_task.done():
                    await asyncio.wait({member.recovery_task})
                if member.unreachable_since is not None:
                    break
                try:
                    return await self._roll_out(member, measurement, index, evaluated)
                except ServiceUnavailable as error:
                    problem = error.problem
                    self._environments[measurement.use].mark_unreachable(member.name, problem)
                except (RequestError, ValueError) as error:
                    problem = error.problem if isinstance(error, RequestError) else _unexpected_problem(error)
                    break
            message = f"an example of {measurement.environment} could not be evaluated: {problem.message}"
            self._conditions.add_warning(Problem(reason=Reason.EVALUATION_ERRORS, message=message[:MESSAGE_LIMIT]))
            return None

    async def _roll_out(
        self, member: PooledEnvironment, measurement: EvaluationTask, index: int, evaluated: EvaluatedPolicy
    ) -> GroupResult:
        # Seeds depend only on example and policy, not on what else runs.
        rules = self._settings.rules.with_overrides(*measurement.sampling)
        live_group = self._open(evaluated, ordinal=_ordinal(measurement, index), rules=rules)
        request = GroupRequest(
            group_id=live_group.id,
            example_index=index,
            split=Split.eval,
            rollouts=measurement.rollouts,
            base_url=f"{self._settings.gateway_url.rstrip('/')}/groups/{live_group.id}/v1",
            model=live_group.model,
            sampling=rules.client_fields,
            deadline_seconds=member.group_deadline,
            rollout_seconds=member.rollout_seconds,
        )
        try:
            result = await member.client.roll_out(request)
            refusals = live_group.final_refusals()
            # More rollouts than requested would give this example a higher weight.
            reported = first_episodes(result.rollouts, measurement.rollouts)
            rollouts = [add_cause(rollout, refusals.get(rollout.rollout_id)) for rollout in reported]
            return result.model_copy(update={"rollouts": rollouts})
        finally:
            self._groups.close(live_group.id)

    def _open(self, evaluated: EvaluatedPolicy, ordinal: int = 0, rules: SamplingRules | None = None) -> LiveGroup:
        return self._groups.open(evaluated.policy, ordinal=ordinal, record=False, base=evaluated.base, rules=rules)


def _ordinal(measurement: EvaluationTask, index: int) -> int:
    """Return an identifier that is unique among this run's evaluation examples."""
    text = f"{measurement.base_name}/{index}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")


def _unexpected_problem(error: Exception) -> Problem:
    return Problem(reason=Reason.EVALUATION_FAILED, message=f"{type(error).__name__}: {error}")
