"""Progress of the run over all of its processes."""

import math
from collections import deque
from datetime import UTC, datetime

from pydantic import field_serializer
from rlrun.api.base.schema import Schema
from rlrun.protocol.orchestrator import GroupCounts, RunPhase
from rlrun.protocol.problem import Problem

from rlrun_orchestrator.data.groups import Group
from rlrun_orchestrator.data.scoring import REWARD_REASONS

REWARDS_KEPT = 500
STEP_TIMES_KEPT = 20


class ProgressState(Schema, extra="ignore"):
    """State from which the next process of the run continues the progress."""

    step: int
    rewards: list[tuple[int, float]]
    started_at: datetime | None
    last_step_time: datetime | None
    groups: GroupCounts
    reward_errors: int
    rollout_errors: int
    trainer_restarts: int
    mismatch_kl: tuple[float, int]
    """Sum of the mismatch KL over the trained tokens, and the number of these tokens."""

    @field_serializer("started_at", "last_step_time")
    def _serialize_time(self, time: datetime | None) -> str | None:
        return time.isoformat() if time is not None else None

    @field_serializer("groups")
    def _serialize_groups(self, groups: GroupCounts) -> dict[str, int]:
        return groups.model_dump()


class RunProgress:
    """Counters and rewards of the run. The next process continues the values in `ProgressState`."""

    def __init__(self) -> None:
        self.phase = RunPhase.starting
        self.problem: Problem | None = None
        """Reason for the failure of the attempt."""
        self.step = 0
        self.policy_version = 0
        """Version that new turns use."""
        self.rewards: deque[tuple[int, float]] = deque(maxlen=REWARDS_KEPT)
        """(step, mean reward) of the newest steps on rollouts."""
        self.started_at: datetime | None = None
        self.last_step_time: datetime | None = None
        self.step_seconds: deque[float] = deque(maxlen=STEP_TIMES_KEPT)
        self.groups = GroupCounts()
        self.reward_errors = 0
        self.rollout_errors = 0
        self.first_reward_error: Problem | None = None
        """First reward error in this process."""
        self.first_rollout_error: Problem | None = None
        """First rollout error in this process."""
        self.trainer_restarts = 0
        self._kl_sum = 0.0
        self._kl_tokens = 0

    @property
    def newest_reward(self) -> float | None:
        """Mean reward of the newest step on rollouts."""
        return self.rewards[-1][1] if self.rewards else None

    @property
    def mismatch_kl(self) -> float | None:
        """Mean of the mismatch KL over all trained tokens of the run."""
        return self._kl_sum / self._kl_tokens if self._kl_tokens else None

    def mark_running(self) -> None:
        """Record that the run has started. The first start time is kept."""
        self.phase = RunPhase.running
        self.started_at = self.started_at or datetime.now(UTC)

    def mark_failed(self, problem: Problem) -> None:
        """Record the reason why the attempt ends."""
        self.phase = RunPhase.failed
        self.problem = problem

    def record_group(self, group: Group) -> None:
        """Count the errors of a finished group."""
        for rollout in group.rollouts:
            if rollout.error is None:
                continue
            if rollout.error.reason in REWARD_REASONS:
                self.reward_errors += 1
                self.first_reward_error = self.first_reward_error or rollout.error
            else:
                self.rollout_errors += 1
                self.first_rollout_error = self.first_rollout_error or rollout.error

    def record_step(self, step: int, reward: float | None, seconds: float | None, now: datetime) -> None:
        """Record a completed step. `reward` is None for a step on demonstrations, and `seconds` is None if this process
        did not observe the step.
        """
        self.step = step
        if reward is not None:
            self.rewards.append((step, reward))
        if seconds is not None:
            self.step_seconds.append(seconds)
        self.last_step_time = now

    def add_mismatch_kl(self, kl_mean: float | None, tokens: int) -> None:
        """Add the mean mismatch KL of one step to the run's mean, weighted by the number of trained tokens."""
        if kl_mean is not None and math.isfinite(kl_mean) and tokens > 0:
            self._kl_sum += kl_mean * tokens
            self._kl_tokens += tokens

    def rewind(self, step: int) -> None:
        """Return to `step`. Counters keep the lost steps, because that work was done."""
        self.step = step
        while self.rewards and self.rewards[-1][0] > step:
            self.rewards.pop()

    # --- between two processes ----------------------------------------------------------------------------------------

    def to_state(self) -> ProgressState:
        """Return the state from which the next process of this run continues."""
        return ProgressState(
            step=self.step,
            rewards=list(self.rewards),
            started_at=self.started_at,
            last_step_time=self.last_step_time,
            groups=self.groups,
            reward_errors=self.reward_errors,
            rollout_errors=self.rollout_errors,
            trainer_restarts=self.trainer_restarts,
            mismatch_kl=(self._kl_sum, self._kl_tokens),
        )

    def restore(self, state: ProgressState) -> None:
        """Continue the progress of an earlier process. Call `rewind` once the trainer's step is known."""
        self.step = state.step
        self.rewards.extend(state.rewards)
        self.started_at, self.last_step_time = state.started_at, state.last_step_time
        self.groups = state.groups
        self.reward_errors, self.rollout_errors = state.reward_errors, state.rollout_errors
        self.trainer_restarts = state.trainer_restarts
        self._kl_sum, self._kl_tokens = state.mismatch_kl
