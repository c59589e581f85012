"""What became of one group: the environment's verdict on each rollout joined with the tokens the gateway recorded.

The environment is user code, so its answer is a claim. What it says of a rollout that the gateway did not see, that
nobody asked for, or that it has judged already is an error of that rollout, counted and never trained on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rlrun.api.run_sections.rollouts import TrajectoryStrategy
from rlrun.constants import Reason
from rlrun.protocol.environment import GroupResult, RolloutResult
from rlrun.protocol.problem import Problem

from rlrun_orchestrator.data.example_buffer import Example
from rlrun_orchestrator.data.example_sampler import SampledExample
from rlrun_orchestrator.data.group_filter import FilterReason, GroupFilter
from rlrun_orchestrator.data.trajectories import Trajectory, Turn, build_trajectory


class GroupOutcome(StrEnum):
    """What a finished group is good for."""

    usable = "usable"
    filtered = "filtered"
    errored = "errored"


REWARD_REASONS = frozenset({Reason.REWARD_FUNCTION_ERROR, Reason.REWARD_NOT_FINITE})
"""Reasons of errors that are the reward function's, not the rollout's."""


@dataclass(frozen=True)
class ScoringSettings:
    """The run's settings that decide what a group is good for."""

    rollouts_per_example: int
    strategy: TrajectoryStrategy
    seq_len: int
    filtering: GroupFilter = field(default_factory=GroupFilter)
    verify: bool = True
    """False where the environments are not asked for rewards: all are 0 and none filters."""
    baseline: bool = True
    """Whether a rollout is compared with its siblings. One alone has nothing to be compared with, so that a group then
    needs two of them, unless the run asks for groups of one.
    """

    @property
    def needed(self) -> int:
        """Good rollouts without which a group is of no use."""
        return min(2, self.rollouts_per_example) if self.baseline else 1


@dataclass(frozen=True)
class RecordedGroup:
    """Record that the gateway has made of a group."""

    id: str
    ordinal: int
    """Number of the group since the beginning of the run."""
    version: int
    """Version of the policy that answered."""
    turns_by_rollout: Mapping[str, Sequence[Turn]]
    """Turns of each rollout, in the order in which the first requests of the rollouts arrived."""


@dataclass
class Rollout:
    """One rollout; without an `error` it has a trajectory, and an advantage once its group is judged."""

    result: RolloutResult
    trajectory: Trajectory
    turns: int
    truncated: bool
    error: Problem | None = None
    advantage: float = 0.0
    token_advantages: list[list[float]] | None = None
    """A teacher's opinion instead: one number per token of each sequence, 0.0 where the policy did not draw it."""

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
    verdict: GroupOutcome = GroupOutcome.errored
    seconds: float = 0.0
    ordinal: int = 0
    """Number of the group since the beginning of the run."""
    cause: FilterReason | None = None
    """Why it was filtered."""

    @property
    def dealt(self) -> SampledExample:
        """The example under its number."""
        return SampledExample(self.ordinal, self.example)

    @property
    def valid_rollouts(self) -> list[Rollout]:
        """The rollouts that can be trained on."""
        return [rollout for rollout in self.rollouts if rollout.error is None]

    @property
    def rewards(self) -> list[float]:
        """Of the good rollouts."""
        return [rollout.result.reward for rollout in self.valid_rollouts]

    @property
    def mean_reward(self) -> float:
        """Of the good rollouts; 0 without any."""
        return math.fsum(self.rewards) / len(self.rewards) if self.rewards else 0.0

    @property
    def first_error(self) -> Problem | None:
        """What the first failed rollout said."""
        return next((rollout.error for rollout in self.rollouts if rollout.error is not None), None)


def score_group(result: GroupResult, recorded: RecordedGroup, example: Example, scoring: ScoringSettings) -> Group:
    """Join an environment's answer with the turns that the gateway recorded for the group, and judge it.

    Rollouts are in the order in which their first requests arrived, whatever the order of the answer.
    """
    group = Group(recorded.id, example, recorded.version, seconds=result.seconds, ordinal=recorded.ordinal)
    order = {rollout: number for number, rollout in enumerate(recorded.turns_by_rollout)}
    seen: set[str] = set()
    for outcome in sorted(result.rollouts, key=lambda outcome: order.get(outcome.rollout_id, len(order))):
        group.rollouts.append(_rollout(outcome, recorded, scoring, seen))
        seen.add(outcome.rollout_id)
    _assign_outcome(group, scoring)
    return group


def _rollout(outcome: RolloutResult, recorded: RecordedGroup, scoring: ScoringSettings, seen: set[str]) -> Rollout:
    turns = recorded.turns_by_rollout.get(outcome.rollout_id, ()) if outcome.rollout_id not in seen else ()
    trajectory = build_trajectory(turns, scoring.strategy, scoring.seq_len)
    truncated = outcome.is_truncated or any(turn.finish_reason == "length" for turn in turns)
    if not scoring.verify:
        outcome = outcome.model_copy(update={"reward": 0.0})
    error: Problem | None
    if outcome.rollout_id in seen:
        error = Problem(reason=Reason.ROLLOUT_REPEATED, message=f"rollout {outcome.rollout_id!r} was answered before")
    elif len(seen) >= scoring.rollouts_per_example:
        message = f"{scoring.rollouts_per_example} rollouts were asked for, and {outcome.rollout_id!r} is one more"
        error = Problem(reason=Reason.ROLLOUT_UNASKED, message=message)
    else:
        error = outcome.error or _own_error(outcome, trajectory)
    return Rollout(outcome, trajectory, len(turns), truncated, error)


def _assign_outcome(group: Group, scoring: ScoringSettings) -> None:
    rewards = group.rewards
    if len(rewards) < scoring.needed:
        group.verdict = GroupOutcome.errored
        return
    group.cause = scoring.filtering.filter_reason(rewards) if scoring.verify else None
    group.verdict = GroupOutcome.usable if group.cause is None else GroupOutcome.filtered
    if scoring.baseline:
        for rollout, advantage in zip(group.valid_rollouts, group_advantages(rewards), strict=True):
            rollout.advantage = advantage


def _own_error(outcome: RolloutResult, trajectory: Trajectory) -> Problem | None:
    if not math.isfinite(outcome.reward):
        return Problem(
            reason=Reason.REWARD_NOT_FINITE, message=f"the reward is {outcome.reward}, which is no finite number"
        )
    if not trajectory.sequences:
        return Problem(
            reason=Reason.ROLLOUT_NOT_RECORDED,
            message=f"rollout {outcome.rollout_id!r} made no request through the gateway under that X-Rollout-Id: the "
            "environment has to send its rollout id with every request to the base URL that it was given",
        )
    return None


def group_advantages(rewards: Sequence[float]) -> list[float]:
    """reward - mean(rewards), one per rollout. Raises ValueError for a reward that is no finite number."""
    if not rewards:
        return []
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError(f"rewards must be finite numbers, not {list(rewards)}")
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]
