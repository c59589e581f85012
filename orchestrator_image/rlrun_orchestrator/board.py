"""What the run has done, over all of its processes."""

import math
from collections import deque
from datetime import UTC, datetime
from typing import Any

from rlrun.schema.wire import GroupCounts, Problem, RunPhase

from rlrun_orchestrator.rollouts import REWARD_REASONS, Group

REWARDS_KEPT = 500
STEP_TIMES_KEPT = 20


class RunProgress:
    """Counters and rewards of the run. All but the phase and the pace continue in the next process."""

    def __init__(self) -> None:
        self.phase = RunPhase.starting
        self.problem: Problem | None = None
        """Reason for the failure of the attempt."""
        self.step = 0
        self.policy_version = 0
        """Version that new groups start with."""
        self.rewards: deque[tuple[int, float]] = deque(maxlen=REWARDS_KEPT)
        """(step, mean reward) of the newest steps on rollouts."""
        self.started_at: datetime | None = None
        self.last_step_time: datetime | None = None
        self.step_seconds: deque[float] = deque(maxlen=STEP_TIMES_KEPT)
        self.groups = GroupCounts()
        self.reward_errors = 0
        self.rollout_errors = 0
        self.first_reward_error: Problem | None = None
        """First failed reward that this process saw."""
        self.first_rollout_error: Problem | None = None
        """First failed rollout that this process saw."""
        self.trainer_restarts = 0
        self._kl_sum = 0.0
        self._kl_tokens = 0

    @property
    def newest_reward(self) -> float | None:
        """Mean reward of the newest step on rollouts."""
        return self.rewards[-1][1] if self.rewards else None

    @property
    def mismatch_kl(self) -> float | None:
        """Mean over all trained tokens of the run."""
        return self._kl_sum / self._kl_tokens if self._kl_tokens else None

    def mark_running(self) -> None:
        """Record that the run has begun. The time of the first beginning is kept."""
        self.phase = RunPhase.running
        self.started_at = self.started_at or datetime.now(UTC)

    def mark_failed(self, problem: Problem) -> None:
        """Record the reason for which the attempt ends."""
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
        """Record a completed step. A step on demonstrations has no reward, an unobserved one no duration."""
        self.step = step
        if reward is not None:
            self.rewards.append((step, reward))
        if seconds is not None:
            self.step_seconds.append(seconds)
        self.last_step_time = now

    def add_mismatch_kl(self, kl_mean: float | None, tokens: int) -> None:
        """Add one step's mean over its trained tokens to the mean over the run's."""
        if kl_mean is not None and math.isfinite(kl_mean) and tokens > 0:
            self._kl_sum += kl_mean * tokens
            self._kl_tokens += tokens

    def rewind(self, step: int) -> None:
        """Go back to `step`. Counters keep what was done after it, because that work was done."""
        self.step = step
        while self.rewards and self.rewards[-1][0] > step:
            self.rewards.pop()

    # --- between two processes ----------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Return what the next process of this run continues from, as JSON types."""
        return {
            "step": self.step,
            "rewards": list(self.rewards),
            "startedAt": self.started_at.isoformat() if self.started_at else None,
            "lastStepTime": self.last_step_time.isoformat() if self.last_step_time else None,
            "groups": self.groups.model_dump(),
            "rewardErrors": self.reward_errors,
            "rolloutErrors": self.rollout_errors,
            "trainerRestarts": self.trainer_restarts,
            "mismatchKl": [self._kl_sum, self._kl_tokens],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue the counters of an earlier process. Raises KeyError, TypeError or ValueError for a malformed state,
        and then changes nothing.
        """
        rewards = [(int(step), float(reward)) for step, reward in state["rewards"]]
        started_at, last_step_time = _time(state["startedAt"]), _time(state["lastStepTime"])
        groups = GroupCounts(**state["groups"])
        reward_errors, rollout_errors = int(state["rewardErrors"]), int(state["rolloutErrors"])
        trainer_restarts = int(state["trainerRestarts"])
        kl_sum, kl_tokens = state["mismatchKl"]
        self._kl_sum, self._kl_tokens = float(kl_sum), int(kl_tokens)
        self.rewards.extend(rewards)
        self.started_at, self.last_step_time = started_at, last_step_time
        self.groups = groups
        self.reward_errors, self.rollout_errors = reward_errors, rollout_errors
        self.trainer_restarts = trainer_restarts


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text).astimezone(UTC) if text else None
