"""What the process knows of its run, in one place: written by whoever learns it, read by /status, /metrics and S3."""

import math
from collections import deque
from datetime import UTC, datetime
from typing import Any

from rlrun.schema.wire import GroupCounts, Problem, RunPhase, RunStatus

from rlrun_orchestrator.cadence import RunSchedule
from rlrun_orchestrator.rollouts import REWARD_REASONS, Group

REWARDS_KEPT = 500
STEP_TIMES_KEPT = 20
TERMINATION_BYTES = 4096
"""What the kubelet reads of a termination message."""
MESSAGE_LIMIT = 500


class Board:
    """The state behind RunStatus: cumulative over all processes of the run, except what is happening now."""

    def __init__(self, schedule: RunSchedule) -> None:
        self._schedule = schedule
        self.phase = RunPhase.starting
        self.problem: Problem | None = None
        self.step = 0
        self.policy_version = 0
        self.rewards: deque[tuple[int, float]] = deque(maxlen=REWARDS_KEPT)
        self.started_at: datetime | None = None
        self.last_step_time: datetime | None = None
        self.step_seconds: deque[float] = deque(maxlen=STEP_TIMES_KEPT)
        self.groups = GroupCounts()
        self.reward_errors = 0
        self.rollout_errors = 0
        self.trainer_restarts = 0
        self.kl_sum = 0.0
        self.kl_tokens = 0
        self.metrics: dict[str, float] = {}
        """Of the newest step."""
        self.evaluations: dict[str, float] = {}
        """The newest results of evaluation and validation."""
        self._waiting: dict[str, Problem] = {}
        self._warnings: dict[str, Problem] = {}
        self._notes: dict[str, Problem] = {}

    # --- what is happening now ----------------------------------------------------------------------------------------

    def wait(self, component: str, problem: Problem | None) -> None:
        """This run waits for `component` (None: no longer)."""
        if problem is None:
            self._waiting.pop(component, None)
        else:
            self._waiting[component] = problem

    def warn(self, problem: Problem) -> None:
        """Something a person should know; one warning per reason, the newest words."""
        self._warnings[problem.reason] = problem

    def withdraw(self, reason: str) -> None:
        """What a warning said does not hold any more."""
        self._warnings.pop(reason, None)

    def note(self, key: str, problem: Problem | None) -> None:
        """What is wrong with `key` now, under whatever reason (None: nothing any more). A warning while it lasts."""
        if problem is None:
            self._notes.pop(key, None)
        else:
            self._notes[key] = problem

    @property
    def warnings(self) -> list[Problem]:
        """All that should be known now, one per reason."""
        return list((self._warnings | {problem.reason: problem for problem in self._notes.values()}).values())

    def failed(self, problem: Problem) -> None:
        """The end, badly."""
        self.phase = RunPhase.failed
        self.problem = problem

    # --- what has happened --------------------------------------------------------------------------------------------

    def group_done(self, group: Group) -> None:
        """Counts the errors of a finished group."""
        for rollout in group.rollouts:
            if rollout.error is None:
                continue
            if rollout.error.reason in REWARD_REASONS:
                self.reward_errors += 1
                self._first_warning("RewardFunctionErrors", f"{self.reward_errors} rewards failed", rollout.error)
            else:
                self.rollout_errors += 1
                self._first_warning("RolloutErrors", f"{self.rollout_errors} rollouts failed", rollout.error)

    def _first_warning(self, reason: str, count: str, error: Problem) -> None:
        known = self._warnings.get(reason)
        first = known.message.partition("first: ")[2] if known else f"{error.reason}: {error.message}"
        message = f"{count} and are not trained on; first: {first}"
        self.warn(Problem(reason=reason, message=message[:MESSAGE_LIMIT]))

    def step_done(self, step: int, reward: float | None, seconds: float | None, now: datetime) -> None:
        """A step is behind the run. Steps on demonstrations have no reward, steps that were not watched no duration."""
        self.step = step
        if reward is not None:
            self.rewards.append((step, reward))
        if seconds is not None:
            self.step_seconds.append(seconds)
        self.last_step_time = now

    def mismatch(self, kl_mean: float | None, tokens: int) -> None:
        """Adds one step's mean over its trained tokens to the mean over the run's."""
        if kl_mean is not None and math.isfinite(kl_mean) and tokens > 0:
            self.kl_sum += kl_mean * tokens
            self.kl_tokens += tokens

    def rewound(self, step: int) -> None:
        """The trainer is back at `step`; what came after is history, but not progress."""
        self.step = step
        while self.rewards and self.rewards[-1][0] > step:
            self.rewards.pop()

    # --- as seen from outside -----------------------------------------------------------------------------------------

    @property
    def mismatch_kl(self) -> float | None:
        """Mean over all trained tokens of the run."""
        return self.kl_sum / self.kl_tokens if self.kl_tokens else None

    @property
    def eta_seconds(self) -> float | None:
        """At the pace of the newest steps."""
        if self.phase is RunPhase.completed:
            return 0.0
        if not self.step_seconds:
            return None
        return (self._schedule.max_steps - self.step) * math.fsum(self.step_seconds) / len(self.step_seconds)

    def status(self) -> RunStatus:
        """What the operator polls."""
        return RunStatus(
            phase=self.phase,
            step=self.step,
            max_steps=self._schedule.max_steps,
            reward=self.rewards[-1][1] if self.rewards else None,
            policy_version=self.policy_version,
            eta_seconds=self.eta_seconds,
            last_step_time=self.last_step_time,
            started_at=self.started_at,
            mismatch_kl=self.mismatch_kl,
            groups=self.groups,
            reward_errors=self.reward_errors,
            rollout_errors=self.rollout_errors,
            waiting_for=next(iter(self._waiting.values()), None),
            warnings=self.warnings,
            problem=self.problem,
        )

    def termination_message(self) -> bytes:
        """The status as JSON of at most 4096 bytes: the warnings give way first, then the end of the long messages."""
        status = self.status()
        for limit in (None, 400, 100):
            if limit is not None:
                status.warnings = status.warnings[: 2 if limit > 100 else 0]
                for problem in (status.problem, status.waiting_for, *status.warnings):
                    if problem is not None:
                        problem.message = problem.message[:limit]
            text = status.model_dump_json(by_alias=True, exclude_none=True).encode()
            if len(text) <= TERMINATION_BYTES:
                return text
        return text[:TERMINATION_BYTES]

    # --- between two processes ----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What the next process of this run continues from, as JSON types."""
        return {
            "step": self.step,
            "rewards": list(self.rewards),
            "startedAt": self.started_at.isoformat() if self.started_at else None,
            "lastStepTime": self.last_step_time.isoformat() if self.last_step_time else None,
            "groups": self.groups.model_dump(),
            "rewardErrors": self.reward_errors,
            "rolloutErrors": self.rollout_errors,
            "trainerRestarts": self.trainer_restarts,
            "mismatchKl": [self.kl_sum, self.kl_tokens],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues the counters of an earlier process. Raises KeyError or ValueError for a state of another shape."""
        self.rewards.extend((int(step), float(reward)) for step, reward in state["rewards"])
        self.started_at = _time(state["startedAt"])
        self.last_step_time = _time(state["lastStepTime"])
        self.groups = GroupCounts(**state["groups"])
        self.reward_errors = state["rewardErrors"]
        self.rollout_errors = state["rolloutErrors"]
        self.trainer_restarts = state["trainerRestarts"]
        self.kl_sum, self.kl_tokens = state["mismatchKl"]


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text).astimezone(UTC) if text else None
