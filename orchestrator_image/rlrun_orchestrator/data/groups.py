"""Groups of rollouts and their states."""

import math
from array import array
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from rlrun.api.run_sections.rollouts import TrainSampling
from rlrun.protocol.environment import ExampleContent, RolloutResult
from rlrun.protocol.problem import Problem

from rlrun_orchestrator.data.example_buffer import Example
from rlrun_orchestrator.data.example_sampler import SampledExample
from rlrun_orchestrator.data.group_filter import FilterReason
from rlrun_orchestrator.data.trajectories import Trajectory


class GroupState(StrEnum):
    """State of a group. `NEXT_STATES` lists the states that may follow each state."""

    in_flight = "in_flight"
    """Running in an environment."""
    ready = "ready"
    """Scored and usable."""
    in_batch = "in_batch"
    """Part of the current batch for the trainer."""
    trained = "trained"
    filtered = "filtered"
    errored = "errored"
    stale = "stale"
    """Usable or unfinished, but dropped because no step may train on it anymore."""
    measured = "measured"
    """Part of a validation or an evaluation, which is never trained on."""


NEXT_STATES = {
    GroupState.in_flight: {GroupState.ready, GroupState.filtered, GroupState.errored, GroupState.stale},
    GroupState.ready: {GroupState.in_batch, GroupState.filtered, GroupState.stale},
    GroupState.in_batch: {GroupState.trained, GroupState.ready, GroupState.stale},
}
"""States that may follow each state. States without an entry are final."""


@dataclass
class VersionSpan:
    """Oldest and newest policy version used by a group, over turns that sampled tokens and turns still in progress. If
    there are none, both are the version with which the group was dispatched.
    """

    dispatched: int
    _sampled: list[int] = field(default_factory=list)
    """Oldest and newest version that sampled tokens, if any did."""
    _in_progress: list[int] = field(default_factory=list)

    @property
    def oldest(self) -> int:
        """Oldest version that the group used."""
        return min((*self._sampled, *self._in_progress), default=self.dispatched)

    @property
    def newest(self) -> int:
        """Newest version that the group used."""
        return max((*self._sampled, *self._in_progress), default=self.dispatched)

    def begin_turn(self, version: int) -> None:
        """Record that a turn starts with `version`. The group uses the version at least until the turn ends."""
        self._in_progress.append(version)

    def end_turn(self, version: int) -> None:
        """Record that a turn that started with `version` ended. If it sampled tokens, `add_turn` records them."""
        # `close` has already ended the turn if the group ended before.
        with suppress(ValueError):
            self._in_progress.remove(version)

    def add_turn(self, version: int) -> None:
        """Record that `version` sampled tokens."""
        self._sampled = [min(*self._sampled, version), max(*self._sampled, version)] if self._sampled else [version] * 2

    def close(self) -> None:
        """End the turns in progress, whose tokens the group no longer receives."""
        self._in_progress.clear()


@dataclass
class Rollout:
    """Rollout of a group. A rollout without an `error` gets an advantage when its group is scored."""

    result: RolloutResult
    trajectory: Trajectory
    turns: int
    truncated: bool
    error: Problem | None = None
    advantage: float = 0.0
    left_out: bool = False
    """True for a valid rollout that no step trains on, because its advantage is 0."""
    masked: bool = False
    """True for a truncated rollout that no step trains on, because of `algorithm.maskTruncated`."""
    teacher_logprobs: "list[array[float]] | None" = None
    """Teacher's log-probabilities: one per token of each sequence, and 0.0 for tokens that the policy did not sample.
    """

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens that the policy did not sample."""
        return sum(len(s.token_ids) - s.sampled_tokens for s in self.trajectory.sequences)

    @property
    def completion_tokens(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(s.sampled_tokens for s in self.trajectory.sequences)

    @property
    def versions(self) -> set[int]:
        """Versions of the policies that sampled the tokens."""
        return set().union(*(sequence.sampled_versions for sequence in self.trajectory.sequences))


@dataclass(eq=False)
class Group:
    """Rollouts of one example that are scored together, in any state."""

    id: str
    sampled: SampledExample
    """Example, with the group's ordinal."""
    versions: VersionSpan
    """Versions of the policies that sampled or may still sample the group's tokens. The gateway adds further turns."""
    state: GroupState = GroupState.in_flight
    rollouts: list[Rollout] = field(default_factory=list)
    """Scored rollouts. Empty if the environment returned no results."""
    size: int = 0
    """Amount that counts toward the size of a batch: the number of valid rollouts or, if batches are measured in
    tokens, a number of tokens. Set when the group becomes ready.
    """
    seconds: float = 0.0
    """Duration that the environment reported."""
    filter_reason: FilterReason | None = None
    """Reason why the group was filtered."""
    content: ExampleContent | None = None
    """Example as reported by the environment."""
    sampling: TrainSampling | None = None
    """Sampling parameters of the environment that override those of the run."""

    def enter(self, state: GroupState) -> None:
        """Move to the next state. Raises ValueError if `state` cannot follow the current one."""
        if state not in NEXT_STATES.get(self.state, ()):
            raise ValueError(f"group {self.id} is {self.state} and cannot become {state}")
        self.state = state

    @property
    def example(self) -> Example:
        """Example of the rollouts."""
        return self.sampled.example

    @property
    def ordinal(self) -> int:
        """Number of the group since the beginning of the run."""
        return self.sampled.ordinal

    @property
    def version(self) -> int:
        """Oldest policy version that the group used, as in `VersionSpan.oldest`."""
        return self.versions.oldest

    @property
    def cause(self) -> str | None:
        """Reason why the group was filtered or errored."""
        if self.state is GroupState.errored and self.first_error is not None:
            return self.first_error.reason
        return self.filter_reason

    @property
    def valid_rollouts(self) -> list[Rollout]:
        """Rollouts that did not fail."""
        return [rollout for rollout in self.rollouts if rollout.error is None]

    @property
    def tokens(self) -> int:
        """Number of tokens of the valid rollouts, including tokens that the policy did not sample."""
        return sum(len(s.token_ids) for rollout in self.valid_rollouts for s in rollout.trajectory.sequences)

    @property
    def sequences(self) -> int:
        """Number of sequences of the valid rollouts."""
        return sum(len(rollout.trajectory.sequences) for rollout in self.valid_rollouts)

    @property
    def trained_rollouts(self) -> list[Rollout]:
        """Valid rollouts that a step trains on if the group is usable."""
        return [rollout for rollout in self.valid_rollouts if not (rollout.left_out or rollout.masked)]

    @property
    def untrained_reason(self) -> FilterReason:
        """Reason why no step trains on the group, if `trained_rollouts` is empty."""
        masked = any(rollout.masked and not rollout.left_out for rollout in self.valid_rollouts)
        return self.filter_reason or (FilterReason.truncated if masked else FilterReason.zero_advantage)

    @property
    def rewards(self) -> list[float]:
        """Rewards of the valid rollouts."""
        return [rollout.result.reward for rollout in self.valid_rollouts]

    @property
    def valid_by_agent(self) -> dict[str | None, list[Rollout]]:
        """Valid rollouts by agent. The key is None in an environment without agents."""
        found: dict[str | None, list[Rollout]] = {}
        for rollout in self.valid_rollouts:
            found.setdefault(rollout.result.agent, []).append(rollout)
        return found

    @property
    def mean_rewards(self) -> list[float]:
        """Each agent's mean reward over its valid rollouts."""
        rewards = ([rollout.result.reward for rollout in rollouts] for rollouts in self.valid_by_agent.values())
        return [math.fsum(own) / len(own) for own in rewards]

    @property
    def errors(self) -> list[Problem]:
        """Errors of the failed rollouts."""
        return [rollout.error for rollout in self.rollouts if rollout.error is not None]

    @property
    def first_error(self) -> Problem | None:
        """Error of the first failed rollout."""
        return next(iter(self.errors), None)


class UntrainedGroups:
    """Groups since the previous step that no step trains on. The first `limit` groups are kept. Of further groups, only
    the rollouts are counted.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._groups: list[Group] = []
        self._omitted = 0

    def add(self, group: Group) -> None:
        """Add a group that ended without training. A group without results is ignored."""
        if not group.rollouts:
            return
        if len(self._groups) < self._limit:
            self._groups.append(group)
        else:
            self._omitted += len(group.rollouts)

    def take(self) -> tuple[list[Group], int]:
        """Return and remove the groups, and the number of rollouts of groups that were not kept."""
        taken = self._groups, self._omitted
        self._groups, self._omitted = [], 0
        return taken
