"""What became of one group: the environment's verdict on each rollout joined with the tokens the gateway recorded."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from rlrun.schema.trajectory import TrajectoryStrategy
from rlrun.schema.wire import GroupResult, Problem, RolloutResult

from rlrun_orchestrator.advantages import group_advantages, judge
from rlrun_orchestrator.buffer import Example
from rlrun_orchestrator.scheduler import Verdict
from rlrun_orchestrator.trajectories import Trajectory, Turn, build_trajectory

REWARD_REASONS = frozenset({"RewardFunctionError", "RewardNotFinite"})
"""Reasons of errors that are the reward function's, not the rollout's."""


@dataclass(frozen=True)
class Scoring:
    """The run's settings that decide what a group is good for."""

    rollouts_per_example: int
    strategy: TrajectoryStrategy
    seq_len: int
    online_filtering: bool


@dataclass
class Rollout:
    """One rollout; without an `error` it has a trajectory, and an advantage once its group is judged."""

    result: RolloutResult
    trajectory: Trajectory
    turns: int
    truncated: bool
    error: Problem | None = None
    advantage: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        """Tokens that the policy did not draw."""
        return sum(len(s.loss_mask) - sum(s.loss_mask) for s in self.trajectory.sequences)

    @property
    def completion_tokens(self) -> int:
        """Tokens that the policy drew."""
        return sum(sum(s.loss_mask) for s in self.trajectory.sequences)


@dataclass
class Group:
    """A finished group."""

    id: str
    example: Example
    version: int
    rollouts: list[Rollout] = field(default_factory=list)
    verdict: Verdict = Verdict.errored
    seconds: float = 0.0

    @property
    def good(self) -> list[Rollout]:
        """The rollouts that can be trained on."""
        return [rollout for rollout in self.rollouts if rollout.error is None]

    @property
    def rewards(self) -> list[float]:
        """Of the good rollouts."""
        return [rollout.result.reward for rollout in self.good]

    @property
    def mean_reward(self) -> float:
        """Of the good rollouts; 0 without any."""
        return math.fsum(self.rewards) / len(self.rewards) if self.rewards else 0.0

    @property
    def first_error(self) -> Problem | None:
        """What the first failed rollout said."""
        return next((rollout.error for rollout in self.rollouts if rollout.error is not None), None)


def score(
    result: GroupResult, recorded: Callable[[str], list[Turn]], example: Example, version: int, scoring: Scoring
) -> Group:
    """Joins an environment's answer with the recorded turns and judges the group.

    A rollout that the environment calls good but whose tokens the gateway never saw is an error: there is nothing to
    train on, and whoever made up its id learns nothing by it.
    """
    group = Group(result.group_id, example, version, seconds=result.seconds)
    seen: set[str] = set()
    for outcome in result.rollouts:
        turns = recorded(outcome.rollout_id) if outcome.rollout_id not in seen else []
        seen.add(outcome.rollout_id)
        trajectory = build_trajectory(turns, scoring.strategy, scoring.seq_len)
        truncated = outcome.is_truncated or any(turn.finish_reason == "length" for turn in turns)
        error = outcome.error or _own_error(outcome, trajectory)
        group.rollouts.append(Rollout(outcome, trajectory, len(turns), truncated, error))
    group.verdict = judge(
        group.rewards,
        rollouts_per_example=scoring.rollouts_per_example,
        online_filtering=scoring.online_filtering,
    )
    for rollout, advantage in zip(group.good, group_advantages(group.rewards), strict=True):
        rollout.advantage = advantage
    return group


def _own_error(outcome: RolloutResult, trajectory: Trajectory) -> Problem | None:
    if not math.isfinite(outcome.reward):
        return Problem(reason="RewardNotFinite", message=f"the reward is {outcome.reward}, which is no finite number")
    if not trajectory.sequences:
        return Problem(
            reason="RolloutNotRecorded",
            message=f"rollout {outcome.rollout_id!r} made no request through the gateway under that X-Rollout-Id: the "
            "environment has to send its rollout id with every request to the base URL that it was given",
        )
    return None
