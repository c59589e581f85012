"""Distributes a step's metrics to status, S3, Prometheus, Weights & Biases and diagnosis, all under the same names.

Each step writes one line of metrics. Each finished evaluation writes another line, under the step whose policy it
evaluated. Readers merge the lines of a step, and later lines win.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rlrun.protocol.trainer import StepResult
from rlrun.storage.samples.record import SampleSplit

from rlrun_orchestrator.data.batch_metrics import (
    Value,
    batch_histograms,
    finite,
    rewards_by_environment,
    trainer_metrics,
)
from rlrun_orchestrator.data.groups import Group
from rlrun_orchestrator.data.metric_names import ChosenMetricNames
from rlrun_orchestrator.data.reward_histogram import RewardHistograms
from rlrun_orchestrator.data.schedule import RunSchedule
from rlrun_orchestrator.data.sent_batch import SentBatch
from rlrun_orchestrator.reporting.diagnosis import HISTORY, diagnose
from rlrun_orchestrator.reporting.wandb_client import WandbLog
from rlrun_orchestrator.status.run_progress import RunProgress
from rlrun_orchestrator.status.status_conditions import StatusConditions
from rlrun_orchestrator.storage.run_recorder import RunRecorder
from rlrun_orchestrator.storage.sample_records import StepRollouts

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepTimings:
    """Durations within a step, in seconds."""

    step: float
    """Total duration, from the end of the previous step."""
    collect: float
    """Time until the batch was complete."""
    waited_for_policy: float
    """Part of `collect` spent waiting for a newer policy that the batch needed to be completed."""
    train: float
    """Time until the trainer responded."""
    publish: float
    """Duration of the newest publication, which runs in the background."""
    save: float = 0.0
    """Part of `step` spent waiting only for the previous step's checkpoint copies."""


@dataclass(frozen=True)
class StepReport:
    """Facts about a completed step."""

    step: int
    """Number of completed steps, including this one."""
    groups: Sequence[Group]
    """Groups of the batch. Empty for a step on demonstrations."""
    trainer: Mapping[str, float]
    """Metrics of the trainer."""
    times: StepTimings
    reward: float | None = None
    """Mean reward over the rollouts."""
    trained_tokens: int = 0
    """Number of tokens that receive a gradient."""
    tokens: int = 0
    """Number of tokens of all sequences, including prompts."""
    samples: int = 0
    """Number of sequences."""
    problems: int = 0
    """Number of examples."""
    untrained: Sequence[Group] = ()
    """Groups that ended since the previous step without being trained on."""
    untrained_omitted: int = 0
    """Number of rollouts in further untrained groups that are not listed."""
    more: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the batch and of other components (example pools and others), under their final names."""


class StepReporter:
    """Reports steps and evaluations to all destinations."""

    def __init__(
        self,
        schedule: RunSchedule,
        progress: RunProgress,
        conditions: StatusConditions,
        recorder: RunRecorder,
        rewards: RewardHistograms,
        wandb: WandbLog | None = None,
        *,
        learns_from_rewards: bool = True,
    ) -> None:
        """`learns_from_rewards` is False if flat rewards are no problem for the algorithm."""
        self._schedule = schedule
        self._progress = progress
        self._conditions = conditions
        self._recorder = recorder
        self._rewards = rewards
        self._wandb = wandb
        self._learns_from_rewards = learns_from_rewards
        self._totals = TrainingTotals()
        self._names = ChosenMetricNames()
        self._step_metrics: dict[str, float] = {}
        """Metrics of the newest step."""
        self._evaluation_metrics: dict[str, float] = {}
        """Newest value of each evaluation and validation metric."""
        self._history: deque[dict[str, float]] = deque(maxlen=HISTORY)
        self._warned: set[str] = set()

    def step(self, report: StepReport) -> None:
        """Report a completed step."""
        now = datetime.now(UTC)
        groups = list(report.groups)
        self._progress.add_mismatch_kl(report.trainer.get("mismatch_kl/all/mean"), report.trained_tokens)
        metrics = finite(self._names.select(self._metrics(report)))
        self._conditions.set_condition("metric names", self._names.problem)
        self._step_metrics = metrics
        self._progress.record_step(report.step, report.reward, report.times.step, now)
        if groups:
            self._rewards.add(rewards_by_environment(groups))
        self._history.append(metrics)
        self._write(report.step, now, {**metrics, **(batch_histograms(groups) if groups else {})})
        if groups:
            self._recorder.rollouts(StepRollouts(report.step, SampleSplit.train, groups))
        self.record_untrained(report.step, report.untrained, report.untrained_omitted)
        self._diagnose()
        self._conditions.set_condition("wandb", self._wandb.problem if self._wandb else None)
        reward = "-" if report.reward is None else f"{report.reward:.4f}"
        log.info("step %d/%d reward %s in %.1f s", report.step, self._schedule.max_steps, reward, report.times.step)

    def record_untrained(self, step: int, groups: Sequence[Group], omitted: int) -> None:
        """Store untrained groups with the rollouts of `step`. `omitted` is the number of untrained rollouts that are
        not stored.
        """
        if groups:
            self._recorder.rollouts(StepRollouts(step, SampleSplit.filtered, groups, omitted=omitted))

    def report_unobserved(self, result: StepResult, batch: SentBatch | None) -> None:
        """Report a step on a batch whose groups this process does not have. `batch` has the metrics recorded when the
        batch was sent, or is None if the batch is unknown.
        """
        now = datetime.now(UTC)
        values = trainer_metrics(result.metrics) | dict(batch.values if batch else {})
        values["progress/step"] = float(result.step)
        if "time/step" in result.metrics:
            values["time/trainer"] = result.metrics["time/step"]
        self._progress.add_mismatch_kl(result.metrics.get("mismatch_kl/all/mean"), batch.tokens if batch else 0)
        metrics = self._step_metrics = finite(self._names.select(values))
        self._progress.record_step(result.step, batch.reward if batch else None, None, now)
        self._write(result.step, now, metrics)

    def record_evaluation(self, step: int, values: dict[str, float]) -> None:
        """Report an evaluation of the policy after `step` steps."""
        values = finite(self._names.select(values))
        self._evaluation_metrics |= values
        if values:
            self._write(step, datetime.now(UTC), values)

    @property
    def latest_metrics(self) -> dict[str, float]:
        """Newest value of every metric."""
        return self._evaluation_metrics | self._step_metrics

    def on_rewind(self) -> None:
        """Discard the history before a rewind, which would distort the diagnosis."""
        self._history.clear()

    def state(self) -> dict[str, Any]:
        """Return the state for the checkpoint, as JSON types."""
        return {"totals": self._totals.state()}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Continue from `state`."""
        totals = (state or {}).get("totals")
        self._totals.restore(totals if isinstance(totals, Mapping) else None)

    # --- details ------------------------------------------------------------------------------------------------------

    def _metrics(self, report: StepReport) -> dict[str, float]:
        times = report.times
        return {
            **trainer_metrics(report.trainer),
            **report.more,
            **self._totals.add(report.tokens, report.samples, report.problems),
            "time/step": times.step,
            "time/generate_completions": times.collect,
            "time/wait_for_policy": times.waited_for_policy,
            "time/wait_for_ckpt": times.waited_for_policy,
            "time/trainer": times.train,
            "time/update_weights": times.publish,
            "time/save_ckpt": times.save,
            "perf/throughput": report.trained_tokens / times.step if times.step > 0 else 0.0,
            "batch/async_level": float(report.step - 1 - self._progress.policy_version),
            "progress/step": float(report.step),
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
    """Cumulative counts. A step that is repeated after a restart counts again, because the work was done again."""

    tokens: int = 0
    """Number of tokens of training sequences, including prompts."""
    samples: int = 0
    """Number of training sequences."""
    problems: int = 0
    """Number of examples."""

    def add(self, tokens: int, samples: int, problems: int) -> dict[str, float]:
        """Count a batch, and return the metrics `progress/...` of the batch and the totals."""
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
        """Return the state as JSON types."""
        return {"tokens": self.tokens, "samples": self.samples, "problems": self.problems}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Continue from `state`. Missing and malformed counts are unchanged."""
        for name in ("tokens", "samples", "problems"):
            value = (state or {}).get(name)
            if isinstance(value, int):
                setattr(self, name, value)
