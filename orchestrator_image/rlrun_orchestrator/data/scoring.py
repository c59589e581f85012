"""Scores groups: joins the environment's results with the tokens that the gateway recorded.

The environment is user code, so its results are not trusted. A result for a rollout that the gateway did not record,
that was not requested, or that was reported before is an error of that rollout: it is counted and never trained on.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlrun.api.run_sections.rollouts import TrajectoryStrategy
from rlrun.api.run_sections.training import Advantage, Algorithm, AlgorithmName
from rlrun.constants import Reason
from rlrun.protocol.environment import GroupResult, RolloutResult
from rlrun.protocol.problem import Problem

from rlrun_orchestrator.data.advantages import group_advantages, penalized_rewards
from rlrun_orchestrator.data.example_buffer import Example
from rlrun_orchestrator.data.example_sampler import SampledExample
from rlrun_orchestrator.data.group_filter import GroupFilter
from rlrun_orchestrator.data.groups import Group, GroupState, Rollout, VersionSpan
from rlrun_orchestrator.data.trajectories import Trajectory, Turn, build_trajectory

LARGEST_REWARD = 1e18
"""Maximum absolute value of a reward. Larger rewards would overflow the trainer's 32-bit numbers."""
MAX_AGENTS = 64
"""Maximum number of trained rollouts per episode, far above legitimate use."""
NAMED = 8
"""Maximum number of names in a message."""


REWARD_REASONS = frozenset({Reason.REWARD_FUNCTION_ERROR, Reason.REWARD_NOT_FINITE})
"""Reasons for errors caused by the reward function, not by the rollout."""


@dataclass(frozen=True)
class ScoringSettings:
    """Settings of the run that determine the outcome of a group."""

    rollouts_per_example: int
    strategy: TrajectoryStrategy
    seq_len: int
    filtering: GroupFilter = field(default_factory=GroupFilter)
    verify: bool = True
    """True if environments compute rewards. Otherwise all rewards are 0, and no group is filtered by reward."""
    algorithm: Algorithm = field(default_factory=Algorithm)
    filter_zero_advantages: bool = False
    """Leave valid rollouts with an advantage of 0 out of the trainer's steps. Requires the algorithm grpo."""

    @property
    def learns_from_rewards(self) -> bool:
        """True if rollouts have advantages."""
        return self.algorithm.name is AlgorithmName.grpo

    @property
    def needed(self) -> int:
        """Number of valid rollouts of one agent that a usable group needs. It is two if rollouts are compared with each
        other, unless the run requests groups of one.
        """
        compared = self.learns_from_rewards and self.algorithm.advantage is not Advantage.none
        return min(2, self.rollouts_per_example) if compared else 1


def score_group(
    group: Group,
    result: GroupResult,
    turns_by_rollout: Mapping[str, Sequence[Turn]],
    refusals: Mapping[str, Problem],
    scoring: ScoringSettings,
) -> GroupState:
    """Join an environment's result with the turns and refusals that the gateway recorded.

    Sets the group's rollouts, in the order of `turns_by_rollout` rather than of the result. `refusals` has the problems
    of rollouts whose last request was refused. Returns the group's next state: `ready`, `filtered` or `errored`.
    """
    group.seconds, group.content = result.seconds, result.example
    order = {rollout: number for number, rollout in enumerate(turns_by_rollout)}
    in_order = sorted(result.rollouts, key=lambda reported: order.get(reported.rollout_id, len(order)))
    asked = {reported.rollout_id for reported in first_episodes(in_order, scoring.rollouts_per_example)}
    seen: set[str] = set()
    for reported in in_order:
        rollout = reported.rollout_id
        turns, refusal = ((), None) if rollout in seen else (turns_by_rollout.get(rollout, ()), refusals.get(rollout))
        group.rollouts.append(
            _rollout(reported, turns, refusal, scoring, repeated=rollout in seen, asked=rollout in asked)
        )
        seen.add(rollout)
    return judge_group(group, scoring)


def episode_of(reported: RolloutResult) -> str:
    """Return the id of a rollout's episode. A rollout without an episode id forms an episode by itself."""
    return reported.episode if reported.episode is not None else reported.rollout_id


def first_episodes(rollouts: Sequence[RolloutResult], count: int) -> list[RolloutResult]:
    """Return the rollouts of the first `count` episodes, at most `MAX_AGENTS` per episode."""
    chosen: Counter[str] = Counter()
    found = []
    for rollout in rollouts:
        episode = episode_of(rollout)
        if (episode in chosen or len(chosen) < count) and chosen[episode] < MAX_AGENTS:
            chosen[episode] += 1
            found.append(rollout)
    return found


def _rollout(
    reported: RolloutResult,
    turns: Sequence[Turn],
    refusal: Problem | None,
    scoring: ScoringSettings,
    *,
    repeated: bool,
    asked: bool,
) -> Rollout:
    trajectory = build_trajectory(turns, scoring.strategy, scoring.seq_len)
    reported = add_cause(reported, refusal)
    truncated = reported.is_truncated or any(turn.finish_reason == "length" for turn in turns)
    if not scoring.verify:
        reported = reported.model_copy(update={"reward": 0.0})
    error: Problem | None
    if repeated:
        error = Problem(reason=Reason.ROLLOUT_REPEATED, message=f"rollout {reported.rollout_id!r} was reported twice")
    elif not asked:
        message = f"rollout {reported.rollout_id!r} was not requested: the request was for "
        message += f"{scoring.rollouts_per_example} rollouts"
        if reported.episode is not None:
            message += f", and an episode may have at most {MAX_AGENTS} agents"
        error = Problem(reason=Reason.ROLLOUT_UNASKED, message=message)
    else:
        error = reported.error or _own_error(reported, trajectory, turns, refusal)
    return Rollout(reported, trajectory, len(turns), truncated, error)


def judge_group(group: Group, scoring: ScoringSettings) -> GroupState:
    """Set the advantages of a group's valid rollouts, and return its next state: `ready`, `filtered` or `errored`.

    Each agent is compared only with itself, because rewards of different agents have no common mean. A group is ready
    if the rollouts of one agent are usable. The rollouts of unusable agents are then left out.
    """
    by_agent = group.valid_by_agent
    comparable = [rollouts for rollouts in by_agent.values() if len(rollouts) >= scoring.needed]
    if not comparable:
        _name_incomparable(group, scoring)
        return GroupState.errored
    reasons = [
        scoring.filtering.filter_reason([rollout.result.reward for rollout in rollouts]) if scoring.verify else None
        for rollouts in comparable
    ]
    kept = [rollouts for rollouts, reason in zip(comparable, reasons, strict=True) if reason is None]
    group.filter_reason = None if kept else reasons[0]
    for rollouts in by_agent.values():
        unused = bool(kept) and rollouts not in kept
        _assign_advantages(rollouts, scoring, unused=unused)
    return GroupState.ready if kept else GroupState.filtered


def _name_incomparable(group: Group, scoring: ScoringSettings) -> None:
    """Set an error on the valid rollouts because no agent has enough of them to compare, unless failed episodes are the
    cause.
    """
    valid = group.valid_rollouts
    if len({episode_of(rollout.result) for rollout in valid}) < scoring.needed:
        return
    names = sorted({str(rollout.result.agent) for rollout in valid})
    shown = ", ".join(names[:NAMED]) + (" and others" if len(names) > NAMED else "")
    message = (
        f"no agent has {scoring.needed} rollouts to compare; the group's valid rollouts belong to the agents {shown}. "
        "Give an agent the same name in every episode"
    )
    for rollout in valid:
        rollout.error = Problem(reason=Reason.AGENTS_NOT_COMPARABLE, message=message)


def _assign_advantages(rollouts: Sequence[Rollout], scoring: ScoringSettings, *, unused: bool) -> None:
    """Set the advantages of an agent's rollouts, or 0 for rollouts of an unusable agent in a usable group."""
    algorithm = scoring.algorithm
    for rollout in rollouts:
        rollout.masked = algorithm.mask_truncated and rollout.truncated
    if unused:
        for rollout in rollouts:
            rollout.advantage, rollout.left_out = 0.0, True
    elif scoring.learns_from_rewards:
        rewards = [rollout.result.reward for rollout in rollouts]
        if algorithm.length_penalty is not None:
            lengths = [(rollout.completion_tokens, rollout.prompt_tokens, rollout.turns) for rollout in rollouts]
            rewards = penalized_rewards(rewards, lengths, algorithm.length_penalty)
        for rollout, advantage in zip(rollouts, group_advantages(rewards, algorithm.advantage), strict=True):
            rollout.advantage = advantage
            rollout.left_out = scoring.filter_zero_advantages and advantage == 0.0


def add_cause(reported: RolloutResult, refusal: Problem | None) -> RolloutResult:
    """Add the reason for a refusal to the rollout's result, if the rollout's last request was refused."""
    if refusal is None:
        return reported
    changes: dict[str, object] = {}
    if refusal.reason == Reason.PROMPT_TOO_LONG:
        changes["is_truncated"] = True
    if reported.error is not None and reported.error.reason == Reason.ROLLOUT_FAILED:
        # The exception follows from the refusal, whose text clients shorten or replace.
        message = f"{refusal.message.rstrip('.')}. The environment reported: {reported.error.message}"
        changes["error"] = Problem(reason=refusal.reason, message=message[:1000])
    return reported.model_copy(update=changes)


def _own_error(
    reported: RolloutResult, trajectory: Trajectory, turns: Sequence[Turn], refusal: Problem | None
) -> Problem | None:
    # Comparisons with NaN are false.
    if not abs(reported.reward) <= LARGEST_REWARD:
        message = f"the reward is {reported.reward}; it must be a number from {-LARGEST_REWARD:g} to {LARGEST_REWARD:g}"
        return Problem(reason=Reason.REWARD_NOT_FINITE, message=message)
    if trajectory.sequences:
        return None
    if refusal is not None:
        return refusal
    if turns:
        message = (
            f"the prompt has {len(turns[0].prompt_ids)} tokens, and the model's seqLen has no room for a token to "
            "train on; shorten the prompt, or choose a model with a higher seqLen"
        )
        return Problem(reason=Reason.PROMPT_TOO_LONG, message=message)
    return Problem(
        reason=Reason.ROLLOUT_NOT_RECORDED,
        message=(
            f"the gateway received no request with the X-Rollout-Id {reported.rollout_id!r}; the environment must "
            "send a rollout's id with every request to the group's base URL"
        ),
    )


def measured_group(result: GroupResult, example: Example, version: int) -> Group:
    """Return the group of a validation or evaluation with policy `version`, for which no tokens were recorded."""
    rollouts = [
        Rollout(found, Trajectory([], 0), turns=0, truncated=found.is_truncated, error=_measured_error(found))
        for found in result.rollouts
    ]
    sampled, versions = SampledExample(example.index, example), VersionSpan(version)
    state, content = GroupState.measured, result.example
    return Group(result.group_id, sampled, versions, state, rollouts, seconds=result.seconds, content=content)


def _measured_error(found: RolloutResult) -> Problem | None:
    if found.error is not None or math.isfinite(found.reward):
        return found.error
    message = f"the reward is {found.reward}, which is not a finite number"
    return Problem(reason=Reason.REWARD_NOT_FINITE, message=message)
