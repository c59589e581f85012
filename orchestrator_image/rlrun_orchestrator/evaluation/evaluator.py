"""Evaluation and validation beside training: fixed examples, the policy of one step, rewards as metrics.

Both run through the same gateway as training, with the run's own sampling, pinned to the policy they measure, with
nothing recorded. They get a fixed share of the rollouts that training has in flight, so that training goes on at its
pace; once training is over they get all of it. One round of each kind runs at a time: where an interval is shorter
than a round takes, rounds are left out and told, except for the last policy's. Results go out under the step whose
policy was measured, at once. A broken evaluation is a warning, never the end of a run.
"""

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.constants import Reason
from rlrun.protocol.environment import GroupRequest, RolloutResult, Split
from rlrun.protocol.policy import PolicyKind, PolicyRef
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import EnvironmentUse, ResolvedRun
from rlrun.service.errors import RequestError, ServiceUnavailable

from rlrun_orchestrator.data.schedule import RunSchedule
from rlrun_orchestrator.evaluation.fair_semaphore import FairSemaphore
from rlrun_orchestrator.evaluation.metrics import evaluation_values, validation_total, validation_values
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroup, LiveGroups
from rlrun_orchestrator.rollouts.environments import EnvironmentPool, PooledEnvironment
from rlrun_orchestrator.status.run_progress import RunProgress
from rlrun_orchestrator.status.status_conditions import StatusConditions

log = logging.getLogger(__name__)

EVALUATION_SHARE = 0.25
"""Of the rollouts that training may have in flight: what evaluation and validation may have besides, together."""
MAX_ATTEMPTS = 3
"""Requests for one example, when its environment is lost on the way."""
RESULTS_KEPT = 64
"""Newest measurements that are not made a second time."""
MESSAGE_LIMIT = 500

Report = Callable[[int, dict[str, float]], None]
"""Takes results: the step whose policy was measured, and the metrics."""


@dataclass(frozen=True)
class EvaluationTask:
    """One environment measured every `interval` steps."""

    use: EnvironmentUse
    environment: str
    interval: int
    examples: int
    """-1 for all."""
    rollouts: int

    def due(self, step: int, max_steps: int) -> bool:
        """After every `interval` steps; evaluations also after the last one."""
        if step >= max_steps and self.use is EnvironmentUse.eval:
            return True
        return step > 0 and step % self.interval == 0

    def values(self, results: Sequence[Sequence[RolloutResult]]) -> dict[str, float]:
        """The metrics of all its examples."""
        make = validation_values if self.use is EnvironmentUse.train else evaluation_values
        return make(self.environment, self.rollouts, results)

    @property
    def base_name(self) -> str:
        """What the names of its metrics begin with."""
        return f"{'val_reward' if self.use is EnvironmentUse.train else 'eval'}/{self.environment}"


@dataclass(frozen=True)
class EvaluatedPolicy:
    """What is measured: a policy, or the model that training starts from (`base`, served under its own name)."""

    policy: PolicyRef
    base: bool = False

    @property
    def name(self) -> str:
        """Names the weights, so that a step trained anew after a restart is measured anew."""
        return "base" if self.base else self.policy.name


@dataclass(frozen=True)
class EvaluatorSettings:
    """What every evaluation request carries, and how much may run at once."""

    gateway_url: str
    sampling: Mapping[str, object]
    """The sampling that training asks environments to ask for."""
    group_deadline: float
    """Seconds for one example."""
    rollouts_in_flight: int
    """What training may have in flight: batchSize times oversamplingFactor."""
    base_model: bool
    """Whether the base model is measured before the first step."""
    warm_start: bool
    """Whether the run starts from another run's checkpoint, so that its first policy is not the base model."""


def measurements(run: ResolvedRun) -> list[EvaluationTask]:
    """What the run asks for: `eval` on its own environments, `val` on the training environments."""
    spec, found = run.spec, []
    if spec.eval is not None:
        for env in spec.eval.env:
            examples = env.num_examples if env.num_examples is not None else spec.eval.num_examples
            rollouts = env.rollouts_per_example or spec.eval.rollouts_per_example
            name = env.effective_name
            found.append(EvaluationTask(EnvironmentUse.eval, name, spec.eval.interval, examples, rollouts))
    if spec.val is not None:
        share, more = divmod(spec.val.num_examples, len(spec.env))
        for index, train in enumerate(spec.env):
            name, examples = train.effective_name, max(1, share + (index < more))
            found.append(
                EvaluationTask(EnvironmentUse.train, name, spec.val.interval, examples, spec.val.rollouts_per_example)
            )
    return found


class Evaluator:
    """Runs the measurements that are due."""

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
        save_state: Callable[[], None],
    ) -> None:
        """`save_state` is called after each measurement, because `state` has changed by then."""
        self._wanted = wanted
        self._environments = environments
        self._groups = groups
        self._progress = progress
        self._conditions = conditions
        self._schedule = schedule
        self._settings = settings
        self._report = report
        self._save_state = save_state
        kinds = {m.use for m in wanted}
        places = int(settings.rollouts_in_flight * EVALUATION_SHARE / max(1, len(kinds)))
        # A room of its own for each kind: a long evaluation must not hold up the short validations.
        self._places = max(1, places)
        self._rooms = {use: FairSemaphore(self._places) for use in kinds}
        self._rounds: dict[EnvironmentUse, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: set[tuple[str, str]] = set()
        self._measured: deque[tuple[str, str]] = deque(maxlen=RESULTS_KEPT)
        """(metrics' base name, subject) of what is done."""

    # --- for the loop -------------------------------------------------------------------------------------------------

    def start(self, step: int, policy: PolicyRef) -> None:
        """Before the first step of this process: the base model, or what an earlier process did not get to."""
        if step > 0:
            self.after_step(step, policy)
        elif self._settings.base_model:
            wanted = [m for m in self._wanted if m.use is EnvironmentUse.eval]
            if self._settings.warm_start and policy.kind is PolicyKind.weights:
                message = "engines hold the weights that the run starts from, so the base model is not measured: run "
                message += "an evaluation without checkpointId, or set eval.evalBaseModel to false"
                self._conditions.add_warning(Problem(reason=Reason.BASE_MODEL_NOT_MEASURED, message=message))
                return
            # A fresh adapter changes nothing yet: version 0 is the base model.
            self._start(wanted, 0, EvaluatedPolicy(policy, base=self._settings.warm_start))

    def after_step(self, step: int, policy: PolicyRef) -> None:
        """Starts what is due with the policy after `step` steps."""
        self._start(self._due(step), step, EvaluatedPolicy(policy))

    def has_unfinished(self, step: int, policy: PolicyRef) -> bool:
        """Whether something that is due at `step` has not been measured."""
        return any(self._is_new(m, EvaluatedPolicy(policy)) for m in self._due(step))

    async def finish(self, deadline: float) -> None:
        """Waits for what is still running, for at most `deadline` seconds, and gives up what is late."""
        for room in self._rooms.values():
            room.raise_limit(self._settings.rollouts_in_flight)
        if not self._tasks:
            return
        problem = Problem(reason=Reason.WAITING_FOR_EVALUATION, message="the final policy is being evaluated")
        self._conditions.set_waiting("evaluation", problem)
        try:
            _, late = await asyncio.wait(self._tasks, timeout=deadline)
        except asyncio.CancelledError:  # the run goes on, and so does the evaluation beside it
            self._conditions.set_waiting("evaluation", None)
            for room in self._rooms.values():
                room.places = self._places
            raise
        if late:
            names = ", ".join(sorted(task.get_name() for task in late))
            message = f"not done within {deadline:.0f} s and given up: {names}. Lower eval.numExamples"
            self._conditions.add_warning(Problem(reason=Reason.EVALUATION_TIMEOUT, message=message[:MESSAGE_LIMIT]))
        await self.close()
        self._conditions.set_waiting("evaluation", None)

    async def close(self) -> None:
        """Gives up what is running."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def state(self) -> dict[str, Any]:
        """What is measured already, as JSON types, for the checkpoint."""
        return {"measured": [list(pair) for pair in self._measured]}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Continues from what `state` gave; a state of another shape is passed over."""
        try:
            self._measured.extend((str(name), str(subject)) for name, subject in (state or {}).get("measured", []))
        except (TypeError, ValueError) as error:
            log.warning("what was evaluated before is not known: %s", error)

    # --- rounds -------------------------------------------------------------------------------------------------------

    def _due(self, step: int) -> list[EvaluationTask]:
        return [m for m in self._wanted if m.due(step, self._schedule.max_steps)]

    def _is_new(self, measurement: EvaluationTask, subject: EvaluatedPolicy) -> bool:
        key = (measurement.base_name, subject.name)
        return key not in self._measured and key not in self._under_way

    def _start(self, due: Sequence[EvaluationTask], step: int, subject: EvaluatedPolicy) -> None:
        for use in EnvironmentUse:
            wanted = [m for m in due if m.use is use and self._is_new(m, subject)]
            if not wanted:
                continue
            kind = "evaluation" if use is EnvironmentUse.eval else "validation"
            before = self._rounds.get(use)
            busy = before is not None and not before.done()
            if busy and step < self._schedule.max_steps:
                field = "eval" if use is EnvironmentUse.eval else "val"
                message = f"the {kind} of step {step} was left out, because the one before was still running: raise "
                message += f"{field}.interval or lower {field}.numExamples"
                self._conditions.add_warning(Problem(reason=Reason.EVALUATION_SKIPPED, message=message))
                continue
            self._under_way |= {(m.base_name, subject.name) for m in wanted}
            round = self._round(wanted, step, subject, before if busy else None)
            task = asyncio.create_task(round, name=f"{kind} of step {step}")
            self._rounds[use] = task
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("%s failed", task.get_name(), exc_info=error)
            message = f"{task.get_name()}: {type(error).__name__}: {error}. See the orchestrator's log"
            self._conditions.add_warning(Problem(reason=Reason.EVALUATION_FAILED, message=message[:MESSAGE_LIMIT]))

    async def _round(
        self, wanted: Sequence[EvaluationTask], step: int, subject: EvaluatedPolicy, before: "asyncio.Task[None] | None"
    ) -> None:
        # Between two groups too: an adapter that no live group is pinned to may be unloaded.
        pin = self._open(subject)
        try:
            if before is not None:
                await asyncio.wait({before})
            found = await asyncio.gather(*(self._measure(m, step, subject) for m in wanted))
            if wanted[0].use is EnvironmentUse.train:
                self._report_problem(step, validation_total([group for groups in found for group in groups]))
        finally:
            self._groups.close(pin.id)
            self._under_way -= {(m.base_name, subject.name) for m in wanted}

    async def _measure(
        self, measurement: EvaluationTask, step: int, subject: EvaluatedPolicy
    ) -> list[list[RolloutResult]]:
        member = self._environments[measurement.use].environments[measurement.environment]
        known = member.info.eval_examples if member.info else 0
        count = known if measurement.examples < 0 else min(measurement.examples, known)
        began = time.monotonic()
        results = list(
            await asyncio.gather(*(self._group(member, measurement, index, subject) for index in range(count)))
        )
        base = measurement.base_name
        values = measurement.values(results) | {f"{base}/seconds": time.monotonic() - began}
        if subject.policy.kind is PolicyKind.weights:
            # An engine holds one set of weights: what was not done when the next came was drawn from that one.
            values[f"{base}/drift"] = float(max(0, self._progress.policy_version - subject.policy.version))
        if values[f"{base}/error"] == 0.0:
            self._conditions.clear_warning(Reason.EVALUATION_ERRORS)
        self._measured.append((base, subject.name))
        self._report_problem(step, values)
        self._save_state()
        return results

    def _report_problem(self, step: int, values: dict[str, float]) -> None:
        log.info("step %d measured: %s", step, values)
        self._report(step, values)

    # --- one example --------------------------------------------------------------------------------------------------

    async def _group(
        self, member: PooledEnvironment, measurement: EvaluationTask, index: int, subject: EvaluatedPolicy
    ) -> list[RolloutResult]:
        async with self._rooms[measurement.use].acquire(measurement.rollouts):
            problem = Problem(reason=Reason.UNREACHABLE, message="it is lost")
            for _ in range(MAX_ATTEMPTS):
                if member.recovery_task is not None and not member.recovery_task.done():
                    await asyncio.wait({member.recovery_task})
                if member.unreachable_since is not None:
                    break
                try:
                    return await self._ask(member, measurement, index, subject)
                except ServiceUnavailable as error:
                    problem = error.problem
                    self._environments[measurement.use].mark_unreachable(member.name, problem)
                except (RequestError, ValueError) as error:
                    problem = error.problem if isinstance(error, RequestError) else _unexpected(error)
                    break
            message = f"an example of {measurement.environment} could not be evaluated: {problem.message}"
            self._conditions.add_warning(Problem(reason=Reason.EVALUATION_ERRORS, message=message[:MESSAGE_LIMIT]))
            return []

    async def _ask(
        self, member: PooledEnvironment, measurement: EvaluationTask, index: int, subject: EvaluatedPolicy
    ) -> list[RolloutResult]:
        # Example and policy alone decide the seeds, where the run has one: whatever else goes on has no say in it.
        live = self._open(subject, ordinal=_ordinal(measurement, index))
        request = GroupRequest(
            group_id=live.id,
            example_index=index,
            split=Split.eval,
            rollouts=measurement.rollouts,
            base_url=f"{self._settings.gateway_url.rstrip('/')}/groups/{live.id}/v1",
            model=live.model,
            sampling=dict(self._settings.sampling),
            deadline_seconds=self._settings.group_deadline,
        )
        try:
            # More than was asked for would weigh this example up.
            return (await member.client.roll_out(request)).rollouts[: measurement.rollouts]
        finally:
            self._groups.close(live.id)

    def _open(self, subject: EvaluatedPolicy, ordinal: int = 0) -> LiveGroup:
        return self._groups.open(subject.policy, ordinal=ordinal, record=False, base=subject.base)


def _ordinal(measurement: EvaluationTask, index: int) -> int:
    """A number that no other example of this run's evaluations has."""
    text = f"{measurement.base_name}/{index}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")


def _unexpected(error: Exception) -> Problem:
    return Problem(reason=Reason.EVALUATION_FAILED, message=f"{type(error).__name__}: {error}")
