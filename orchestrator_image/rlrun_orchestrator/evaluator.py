"""Evaluation and validation beside training: fixed examples, the policy of one step, rewards as metrics.

Both run through the same gateway as training, pinned to their policy, with nothing recorded. Their results belong to
the step whose policy they measured; they join the metrics of the step during which they finish, next to that number.
A broken evaluation is a warning, never the end of a run.
"""

import asyncio
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlrun.schema.resolved import EnvironmentUse, ResolvedRun
from rlrun.schema.wire import GroupRequest, PolicyRef, Problem, RolloutResult, Split

from rlrun_orchestrator.board import Board
from rlrun_orchestrator.environments import Environment, Environments
from rlrun_orchestrator.gateway.groups import LiveGroups
from rlrun_orchestrator.http import RequestFailed

log = logging.getLogger(__name__)

PARALLEL_GROUPS = 16
"""Of all evaluations together, so that training keeps most of the engines."""


@dataclass(frozen=True)
class Measurement:
    """One environment measured every `interval` steps."""

    use: EnvironmentUse
    environment: str
    interval: int
    examples: int
    """-1 for all."""
    rollouts: int

    def due(self, step: int, max_steps: int) -> bool:
        """After every `interval` steps; evaluations also after the last one."""
        return step % self.interval == 0 or (self.use is EnvironmentUse.eval and step >= max_steps)

    def values(self, results: Sequence[Sequence[RolloutResult]]) -> dict[str, float]:
        """The metrics of all its examples; failed rollouts are left out of rewards and counted as errors."""
        groups = [[r.reward for r in g if r.error is None and math.isfinite(r.reward)] for g in results]
        rewards = [reward for group in groups for reward in group]
        total = len(results) * self.rollouts
        errors = (total - len(rewards)) / total if total else 0.0
        if self.use is EnvironmentUse.train:
            base = f"val_reward/{self.environment}"
            return {f"{base}/error": errors} | ({f"{base}/mean": _mean(rewards)} if rewards else {})
        base = f"eval/{self.environment}"
        values = {f"{base}/error": errors}
        if rewards:
            values[f"{base}/avg@{self.rollouts}"] = _mean(rewards)
            values[f"{base}/pass@{self.rollouts}"] = _mean([float(any(r >= 1.0 for r in g)) for g in groups])
        return values


def measurements(run: ResolvedRun) -> list[Measurement]:
    """What the run asks for: `eval` on its own environments, `val` on the training environments."""
    spec, found = run.spec, []
    if spec.eval is not None:
        for env in spec.eval.env:
            examples = env.num_examples if env.num_examples is not None else spec.eval.num_examples
            rollouts = env.rollouts_per_example or spec.eval.rollouts_per_example
            name = env.effective_name
            found.append(Measurement(EnvironmentUse.eval, name, spec.eval.interval, examples, rollouts))
    if spec.val is not None:
        share = math.ceil(spec.val.num_examples / len(spec.env))
        for train in spec.env:
            name = train.effective_name
            found.append(
                Measurement(EnvironmentUse.train, name, spec.val.interval, share, spec.val.rollouts_per_example)
            )
    return found


class Evaluator:
    """Runs the measurements that are due."""

    def __init__(
        self,
        wanted: Sequence[Measurement],
        environments: Mapping[EnvironmentUse, Environments],
        groups: LiveGroups,
        board: Board,
        *,
        gateway_url: str,
        max_steps: int,
        sampling: dict[str, object],
        group_deadline: float,
        before_training: bool,
    ) -> None:
        self._wanted = wanted
        self._environments = environments
        self._groups = groups
        self._board = board
        self._gateway_url = gateway_url.rstrip("/")
        self._max_steps = max_steps
        self._sampling = sampling
        self._group_deadline = group_deadline
        self._before_training = before_training
        self._room = asyncio.Semaphore(PARALLEL_GROUPS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._measured: dict[str, int] = {}
        """Newest step measured or being measured, by use and environment: a repeated step is not measured again."""
        self._finished: list[tuple[int, dict[str, float]]] = []

    def before_first_step(self, step: int, policy: PolicyRef) -> None:
        """Measures the policy that training starts from, if the run wants that."""
        if step == 0 and self._before_training:
            self._start([m for m in self._wanted if m.use is EnvironmentUse.eval], 0, policy)

    def after_step(self, step: int, policy: PolicyRef) -> None:
        """Starts what is due with the policy after `step` steps."""
        self._start([m for m in self._wanted if m.due(step, self._max_steps)], step, policy)

    def results(self) -> dict[str, float]:
        """What has finished since the last call."""
        found: dict[str, float] = {}
        for _, values in self._finished:
            found |= values
        self._finished = []
        return found

    async def finish(self, deadline: float) -> list[tuple[int, dict[str, float]]]:
        """Waits for what is still running; (step, metrics) of what `results` has not told yet."""
        if self._tasks:
            problem = Problem(reason="WaitingForEvaluation", message="the final policy is being evaluated")
            self._board.wait("evaluation", problem)
            _, late = await asyncio.wait(self._tasks, timeout=deadline)
            if late:
                message = f"{len(late)} evaluations did not end within {deadline:.0f} s and were given up"
                self._board.warn(Problem(reason="EvaluationTimeout", message=message))
            await self.close()
            self._board.wait("evaluation", None)
        finished, self._finished = self._finished, []
        return finished

    async def close(self) -> None:
        """Gives up what is running."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, due: Sequence[Measurement], step: int, policy: PolicyRef) -> None:
        for measurement in due:
            key = f"{measurement.use}/{measurement.environment}"
            if self._measured.get(key, -1) >= step:
                continue
            self._measured[key] = step
            task = asyncio.create_task(self._measure(measurement, step, policy), name=f"{key} at step {step}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _measure(self, measurement: Measurement, step: int, policy: PolicyRef) -> None:
        member = self._environments[measurement.use].members[measurement.environment]
        known = member.info.eval_examples if member.info else 0
        count = known if measurement.examples < 0 else min(measurement.examples, known)
        began = time.monotonic()
        # Between two groups too: an adapter that no live group is pinned to may be unloaded.
        pin = self._groups.open(policy, record=False)
        tasks = [asyncio.create_task(self._group(member, measurement, index, policy)) for index in range(count)]
        try:
            results = await asyncio.gather(*tasks)
        finally:
            self._groups.close(pin.id)
            for task in tasks:
                task.cancel()
        values = measurement.values(results)
        base = next(iter(values)).rpartition("/")[0] if values else measurement.environment
        values |= {f"{base}/step": float(step), f"{base}/seconds": time.monotonic() - began}
        self._finished.append((step, values))
        log.info("step %d measured: %s", step, values)

    async def _group(
        self, member: Environment, measurement: Measurement, index: int, policy: PolicyRef
    ) -> list[RolloutResult]:
        async with self._room:
            live = self._groups.open(policy, record=False)
            request = GroupRequest(
                group_id=live.id,
                example_index=index,
                split=Split.eval,
                rollouts=measurement.rollouts,
                base_url=f"{self._gateway_url}/groups/{live.id}/v1",
                model=policy.name,
                sampling=self._sampling,
                deadline_seconds=self._group_deadline,
            )
            try:
                return (await member.client.roll_out(request)).rollouts
            except (RequestFailed, ValueError) as error:
                message = f"an example of {measurement.environment} could not be evaluated: {error}"
                self._board.warn(Problem(reason="EvaluationErrors", message=message[:500]))
                return []
            finally:
                self._groups.close(live.id)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
