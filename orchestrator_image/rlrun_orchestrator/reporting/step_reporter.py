"""Where the numbers of a step go: the status, S3, Prometheus, Weights & Biases and the diagnosis, all under the same
names.

One line per step, and one per finished evaluation under the step whose policy it measured: readers merge the lines of
a step, the later one wins.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rlrun.protocol.trainer import StepResult

from rlrun_orchestrator.data.batch_metrics import (
    Value,
    batch_histograms,
    finite,
    rewards_by_environment,
    trainer_metrics,
)
from rlrun_orchestrator.data.groups import Group
from rlrun_orchestrator.data.reward_histogram import RewardHistograms
from rlrun_orchestrator.data.schedule import RunSchedule
from rlrun_orchestrator.data.sent_batch import SentBatch
from rlrun_orchestrator.reporting.diagnosis import HISTORY, diagnose
from rlrun_orchestrator.reporting.rollout_records import rollout_lines
from rlrun_orchestrator.reporting.wandb_client import WandbLog
from rlrun_orchestrator.status.run_progress import RunProgress
from rlrun_orchestrator.status.status_conditions import StatusConditions
from rlrun_orchestrator.storage.run_recorder import RunRecorder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepTimings:
    """Where the seconds of a step went."""

    step: float
    """All of it, from the end of the step before."""
    collect: float
    """Until the batch was complete."""
    waited_for_policy: float
    """Part of `collect`, with nothing to dispatch until a newer policy is there."""
    train: float
    """Until the trainer answered."""
    publish: float
    """Of the newest publication, which runs beside the steps."""
    save: float = 0.0
    """Part of `step`, in which nothing but the copies for checkpoint and adapter of the step before was missing."""


@dataclass(frozen=True)
class StepReport:
    """What the loop knows of a step that is done."""

    step: int
    """Steps done, this one included."""
    groups: Sequence[Group]
    """None in a step on demonstrations."""
    trainer: Mapping[str, float]
    """The trainer's own metrics."""
    times: StepTimings
    reward: float | None = None
    """Mean over the rollouts."""
    trained_tokens: int = 0
    """That the policy drew, or that a demonstration has."""
    tokens: int = 0
    """Of all sequences, prompts included."""
    samples: int = 0
    """Sequences."""
    problems: int = 0
    """Examples."""
    in_flight: int = 0
    """Groups in flight now."""
    cancelled: int = 0
    """Groups given up since the step before."""
    filtered: int = 0
    """Groups filtered since the step before."""
    more: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the batch and of other parts (pools of examples, ...), under their final names."""


class StepReporter:
    """Tells everybody about steps and evaluations."""

    def __init__(
        self,
        schedule: RunSchedule,
        progress: RunProgress,
        conditions: StatusConditions,
        recorder: RunRecorder,
        rewards: RewardHistograms,
        wandb: WandbLog | None = None,
        *,
        rollouts_per_example: int,
        learns_from_rewards: bool = True,
    ) -> None:
        """`learns_from_rewards`: else flat rewards are no trouble."""
        self._schedule = schedule
        self._progress = progress
        self._conditions = conditions
        self._recorder = recorder
        self._rewards = rewards
        self._wandb = wandb
        self._rollouts_per_example = rollouts_per_example
        self._learns_from_rewards = learns_from_rewards
        self._totals = TrainingTotals()
        self._step_metrics: dict[str, float] = {}
        """Of the newest step."""
        self._evaluation_metrics: dict[str, float] = {}
        """The newest value of each metric of evaluation and validation."""
        self._history: deque[dict[str, float]] = deque(maxlen=HISTORY)
        self._warned: set[str] = set()

    def step(self, facts: StepReport) -> None:
        """A step is done."""
        now = datetime.now(UTC)
        groups = list(facts.groups)
        self._progress.add_mismatch_kl(facts.trainer.get("mismatch_kl/all/mean"), facts.trained_tokens)
        numbers = finite(self._numbers(facts))
        self._step_metrics = numbers
        self._progress.record_step(facts.step, facts.reward, facts.times.step, now)
        if groups:
            self._rewards.add(rewards_by_environment(groups))
        self._history.append(numbers)
        self._write(facts.step, now, {**numbers, **(batch_histograms(groups) if groups else {})})
        if groups:
            self._recorder.rollouts(facts.step, rollout_lines(groups, facts.step))
        self._diagnose()
        self._conditions.set_condition("wandb", self._wandb.problem if self._wandb else None)
        told = "-" if facts.reward is None else f"{facts.reward:.4f}"
        log.info("step %d/%d reward %s in %.1f s", facts.step, self._schedule.max_steps, told, facts.times.step)

    def report_unobserved(self, result: StepResult, batch: SentBatch | None) -> None:
        """A step is done whose batch is no more: only what was kept of it is known, or nothing."""
        now = datetime.now(UTC)
        values = trainer_metrics(result.metrics) | dict(batch.values if batch else {})
        values["progress/step"] = float(result.step)
        if "time/step" in result.metrics:
            values["time/trainer"] = result.metrics["time/step"]
        self._progress.add_mismatch_kl(result.metrics.get("mismatch_kl/all/mean"), batch.tokens if batch else 0)
        self._step_metrics = finite(values)
        self._progress.record_step(result.step, batch.reward if batch else None, None, now)
        self._write(result.step, now, finite(values))

    def measured(self, step: int, values: dict[str, float]) -> None:
        """An evaluation of the policy after `step` steps has finished."""
        self._evaluation_metrics |= values
        if values:
            self._write(step, datetime.now(UTC), finite(values))

    @property
    def latest_metrics(self) -> dict[str, float]:
        """The newest value of every metric."""
        return self._evaluation_metrics | self._step_metrics

    def on_rewind(self) -> None:
        """Steps will be made again: what came before says nothing of the pace and the trend."""
        self._history.clear()

    def state(self) -> dict[str, Any]:
        """For the checkpoint, as JSON types."""
        return {"totals": self._totals.state()}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Continues from what `state` gave."""
        totals = (state or {}).get("totals")
        self._totals.restore(totals if isinstance(totals, Mapping) else None)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _numbers(self, facts: StepReport) -> dict[str, float]:
        times, each = facts.times, self._rollouts_per_example
        return {
            **trainer_metrics(facts.trainer),
            **facts.more,
            **self._totals.add(facts.tokens, facts.samples, facts.problems),
            "time/step": times.step,
            "time/generate_completions": times.collect,
            "time/wait_for_policy": times.waited_for_policy,
            "time/wait_for_ckpt": times.waited_for_policy,
            "time/trainer": times.train,
            "time/update_weights": times.publish,
            "time/save_ckpt": times.save,
            "perf/throughput": facts.trained_tokens / times.step if times.step > 0 else 0.0,
            "batch/async_level": float(facts.step - 1 - self._progress.policy_version),
            "batch/inflight_rollouts": float(facts.in_flight * each),
            "batch/cancelled_rollouts": float(facts.cancelled * each),
            "filtered_rollouts": float(facts.filtered * each),
            "progress/step": float(facts.step),
            "progress/ckpt_step": float(self._progress.policy_version),
            "progress/trainer_restarts": float(self._progress.trainer_restarts),
        }

    def _write(self, step: int, now: datetime, values: Mapping[str, Value]) -> None:
        self._recorder.metrics(step, now, values)
        if self._wandb is not None:
            self._wandb.log(step, values)

    def _diagnose(self) -> None:
        problems = diagnose(list(self._history), rewards=self._learns_from_rewards)
        for problem in problems:
            self._conditions.add_warning(problem)
        reasons = {problem.reason for problem in problems}
        for reason in self._warned - reasons:
            self._conditions.clear_warning(reason)
        self._warned = reasons


@dataclass
class TrainingTotals:
    """Cumulative; a step that is made again after a restart counts again, as the work did."""

    tokens: int = 0
    """Of training sequences, prompts included."""
    samples: int = 0
    """Training sequences."""
    problems: int = 0
    """Examples."""

    def add(self, tokens: int, samples: int, problems: int) -> dict[str, float]:
        """Counts a batch; the metrics `progress/...` of it and of all so far."""
        self.tokens += tokens
        self.samples += samples
        self.problems += problems
        return {
            "progress/tokens": float(tokens),
            "progress/samples": float(samples),
            "progress/problems": float(problems),
            "progress/total_tokens": float(self.tokens),
            "progress/total_samples": float(self.samples),
            "progress/total_problems": float(self.problems),
        }

    def state(self) -> dict[str, Any]:
        """As JSON types."""
        return {"tokens": self.tokens, "samples": self.samples, "problems": self.problems}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Continues from what `state` gave, as far as it is there."""
        for name in ("tokens", "samples", "problems"):
            value = (state or {}).get(name)
            if isinstance(value, int):
                setattr(self, name, value)
