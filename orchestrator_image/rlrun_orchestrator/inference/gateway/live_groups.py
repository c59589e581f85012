"""Groups that may use the gateway now, with the recorded turns of their rollouts.

A group is open from its dispatch to its result. Its id is the only credential for the gateway and cannot be guessed.

Each turn is sampled by one policy. A turn of a training group uses the newest published policy, regardless of earlier
turns; a group that evaluates a policy keeps that policy.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlrun.protocol.policy import PolicyKind, PolicyRef
from rlrun.protocol.problem import Problem

from rlrun_orchestrator.data.groups import VersionSpan
from rlrun_orchestrator.data.trajectories import Turn
from rlrun_orchestrator.inference.gateway.conversations import Conversations
from rlrun_orchestrator.inference.gateway.sampling_rules import SamplingRules
from rlrun_orchestrator.inference.replica_pool import Replica


@dataclass(slots=True)
class RolloutSession:
    """State of one rollout, which depends on the order of requests but not on time."""

    rollout_order: int
    """Position of the rollout in its group, by first request."""
    requests: int = 0
    turns: list[tuple[int, Turn]] = field(default_factory=list)
    """Recorded turns, each with the arrival number of its request."""
    conversations: Conversations = field(default_factory=Conversations)
    """Completed chats. A prompt that continues one must start with its exact tokens."""
    answered: int = 0
    """Arrival number of the newest answered request."""
    refusal: tuple[int, Problem] | None = None
    """Arrival number of the newest refused request, and the problem."""


@dataclass(frozen=True)
class ServedPolicy:
    """Policy that samples a turn, with its name in the engines."""

    policy: PolicyRef
    model: str
    """Model name in requests to the engine: the policy's name, or the base model's id."""
    base: bool = False
    """True if the base model responds instead of the policy."""

    @property
    def required_policy(self) -> str | None:
        """Name of the policy that a replica must serve, or None if any replica that responds is suitable."""
        return None if self.base else self.policy.name


@dataclass
class LiveGroup:
    """Group with the policy of its newest turn and its recorded turns."""

    id: str
    settled: ServedPolicy
    """Newest policy that has sampled tokens, or the policy with which the group was opened."""
    ordinal: int = 0
    """Number of the group in the run, from which its seeds are derived."""
    record: bool = True
    """False for evaluations, whose turns are not trained on."""
    rules: SamplingRules | None = None
    """Sampling rules of an evaluation, or of an environment that overrides the run's rules. None means the run's
    rules.
    """
    rollouts: dict[str, RolloutSession] = field(default_factory=dict)
    arrivals: int = 0
    in_flight: int = 0
    """Number of requests in progress."""
    home: Replica | None = None
    """Replica that has this group's prefix in its cache."""

    versions: VersionSpan = field(init=False)
    """Versions of the policies that sampled tokens, or may do so in a turn in progress."""
    turns_in_progress: list[ServedPolicy] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.versions = VersionSpan(self.policy.version)

    @property
    def served(self) -> ServedPolicy:
        """Policy of the newest turn that is in progress or has sampled tokens, or else the policy with which the group
        was opened.
        """
        return self.turns_in_progress[-1] if self.turns_in_progress else self.settled

    @property
    def policy(self) -> PolicyRef:
        """Policy of the newest turn."""
        return self.served.policy

    @property
    def model(self) -> str:
        """Model name of the newest turn."""
        return self.served.model

    def next_arrival(self) -> int:
        """Return the arrival number of a new request."""
        self.arrivals += 1
        return self.arrivals

    def rollout_session(self, rollout: str) -> RolloutSession:
        """Return the state of a rollout. A new rollout is added after the group's other rollouts."""
        session = self.rollouts.get(rollout)
        if session is None:
            session = self.rollouts[rollout] = RolloutSession(len(self.rollouts))
        return session

    def record_turn(self, rollout: str, arrival: int, turn: Turn) -> None:
        """Record a turn. Turns are ordered by the arrival of their requests; responses may overtake one another."""
        turns = self.rollout_session(rollout).turns
        turn.share([one for _, one in turns])
        turns.append((arrival, turn))
        if turn.completion_ids:
            self.versions.add_turn(turn.version)
        self.record_answer(rollout, arrival)

    def settle(self, served: ServedPolicy) -> None:
        """Record that the policy sampled tokens, unless a newer policy has sampled tokens before."""
        if served.policy.version >= self.settled.policy.version:
            self.settled = served

    def record_answer(self, rollout: str, arrival: int) -> None:
        """Record that a request was answered, even in an evaluation, which records no turns."""
        session = self.rollout_session(rollout)
        session.answered = max(session.answered, arrival)

    def record_refusal(self, rollout: str, arrival: int, problem: Problem) -> None:
        """Record why a request was refused."""
        session = self.rollout_session(rollout)
        if session.refusal is None or session.refusal[0] < arrival:
            session.refusal = arrival, problem

    def turns_of(self, rollout: str) -> list[Turn]:
        """Return the turns of a rollout in order, or an empty list for an unknown id."""
        known = self.rollouts.get(rollout)
        return [turn for _, turn in sorted(known.turns, key=lambda pair: pair[0])] if known else []

    def completion_tokens(self) -> list[int]:
        """Return the number of tokens sampled so far in each rollout."""
        return [sum(len(turn.completion_ids) for _, turn in session.turns) for session in self.rollouts.values()]

    def turns_by_rollout(self) -> dict[str, list[Turn]]:
        """Return the recorded turns of each rollout, ordered by the arrival of the rollouts' first requests."""
        return {rollout: self.turns_of(rollout) for rollout in self.rollouts}

    def final_refusals(self) -> dict[str, Problem]:
        """Return the problem of each rollout whose last request was refused."""
        return {
            rollout: session.refusal[1]
            for rollout, session in self.rollouts.items()
            if session.refusal is not None and session.refusal[0] > session.answered
        }


class LiveGroups:
    """All open groups."""

    def __init__(self, base_model: str = "") -> None:
        """`base_model` is the id under which every engine of the run serves the base model."""
        self._base_model = base_model
        self._newest: PolicyRef | None = None
        """Policy of new turns. If None, each group continues with its own policy."""
        self._groups: dict[str, LiveGroup] = {}
        self._opened = {True: 0, False: 0}

    def open(
        self,
        policy: PolicyRef,
        *,
        ordinal: int | None = None,
        record: bool = True,
        base: bool = False,
        rules: SamplingRules | None = None,
    ) -> LiveGroup:
        """Open a group that starts with `policy`. The group keeps this policy unless it is recorded for training.

        `ordinal` determines the group's seeds. The default is the number of groups opened before; evaluations (`record`
        False) are counted separately. If `base` is True, the base model responds instead of the policy, for an
        evaluation of the base model. Engines whose weights were replaced (`PolicyKind.weights`) no longer have a base
        model, so no replica can serve such a group.
        """
        number = self._opened[record] if ordinal is None else ordinal
        self._opened[record] += 1
        group = LiveGroup(f"g-{secrets.token_hex(16)}", self._resolve(policy, base=base), number, record, rules)
        self._groups[group.id] = group
        return group

    def publish(self, policy: PolicyRef | None) -> None:
        """Start further turns of training groups with `policy`. If `policy` is None, groups continue with their last
        policy.
        """
        self._newest = policy

    @contextmanager
    def turn(self, group: LiveGroup) -> Iterator[ServedPolicy]:
        """Choose the policy for a turn that starts now. Engines keep the policy until the turn ends."""
        served = group.served
        if self._newest is not None and group.record and not served.base:
            served = self._resolve(self._newest)
        group.versions.begin_turn(served.policy.version)
        group.turns_in_progress.append(served)
        try:
            yield served
        finally:
            group.turns_in_progress.remove(served)
            group.versions.end_turn(served.policy.version)

    def _resolve(self, policy: PolicyRef, *, base: bool = False) -> ServedPolicy:
        serves_base = base or policy.kind is PolicyKind.weights
        return ServedPolicy(policy, self._base_model if serves_base else policy.name, base)

    def close(self, group_id: str) -> None:
        """Close the group. Further requests with its id are rejected, and turns in progress are not recorded."""
        group = self._groups.pop(group_id, None)
        if group is not None:
            group.versions.close()

    def get(self, group_id: str) -> LiveGroup | None:
        """Return the group, or None if it is not open."""
        return self._groups.get(group_id)

    def policies(self) -> dict[str, PolicyRef]:
        """Return the policies that engines must keep for open groups, by name: policies of turns in progress, and
        policies that the next turn of a group will use again.
        """
        used: dict[str, PolicyRef] = {}
        for group in self._groups.values():
            keeps = self._newest is None or not group.record
            for served in (*group.turns_in_progress, *([group.settled] if keeps else [])):
                if not served.base:
                    used[served.policy.name] = served.policy
        return used

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[LiveGroup]:
        return iter(self._groups.values())
