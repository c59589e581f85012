"""The groups that may use the gateway now, with the recorded turns of their rollouts.

A group is open from its dispatch to its result. Its id is the only credential for the gateway and cannot be guessed.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from rlrun.protocol.policy import PolicyKind, PolicyRef
from rlrun.protocol.problem import Problem

from rlrun_orchestrator.data.groups import RecordedGroup
from rlrun_orchestrator.data.trajectories import Turn
from rlrun_orchestrator.inference.gateway.prefixes import Conversation
from rlrun_orchestrator.inference.replica_pool import Replica


@dataclass(slots=True)
class RolloutSession:
    """State of one rollout. It depends on the order of requests only, not on time."""

    rollout_order: int
    """Number of the rollout in its group, by first request."""
    requests: int = 0
    turns: list[tuple[int, Turn]] = field(default_factory=list)
    """Recorded turns, each with the arrival number of its request."""
    conversation: Conversation | None = None
    """Newest chat. The next prompt must begin with its exact tokens."""
    answered: int = 0
    """Newest request that was answered, by its arrival number."""
    refusal: tuple[int, Problem] | None = None
    """Newest request that got no answer, by its arrival number, with the cause."""


@dataclass
class LiveGroup:
    """One group with the policy version that it is pinned to and the turns recorded so far."""

    id: str
    policy: PolicyRef
    model: str
    """Model name in requests to the engine: the policy's name, or the base model's id."""
    ordinal: int = 0
    """Number of the group in the run, from which its seeds are derived."""
    record: bool = True
    """False for evaluations, whose turns are not trained on."""
    base: bool = False
    """True if the base model responds instead of the policy."""
    rollouts: dict[str, RolloutSession] = field(default_factory=dict)
    arrivals: int = 0
    in_flight: int = 0
    """Number of requests in progress."""
    home: Replica | None = None
    """Replica that has this group's prefix in its cache."""

    @property
    def required_policy(self) -> str | None:
        """Name of the policy that a replica must serve. None: any replica that responds."""
        return None if self.base else self.policy.name

    def next_arrival(self) -> int:
        """Return the arrival number of a new request."""
        self.arrivals += 1
        return self.arrivals

    def rollout_session(self, rollout: str) -> RolloutSession:
        """Return the state of a rollout. A new rollout gets the next number."""
        session = self.rollouts.get(rollout)
        if session is None:
            session = self.rollouts[rollout] = RolloutSession(len(self.rollouts))
        return session

    def record_turn(self, rollout: str, arrival: int, turn: Turn) -> None:
        """Record a turn. Turns are ordered by the arrival of their requests; responses may overtake one another."""
        self.rollout_session(rollout).turns.append((arrival, turn))
        self.record_answer(rollout, arrival)

    def record_answer(self, rollout: str, arrival: int) -> None:
        """Record that a request was answered, also in an evaluation, which records no turns."""
        session = self.rollout_session(rollout)
        session.answered = max(session.answered, arrival)

    def record_refusal(self, rollout: str, arrival: int, problem: Problem) -> None:
        """Record why a request got no answer."""
        session = self.rollout_session(rollout)
        if session.refusal is None or session.refusal[0] < arrival:
            session.refusal = arrival, problem

    def turns_of(self, rollout: str) -> list[Turn]:
        """Return the turns of a rollout in order, none for an unknown id."""
        known = self.rollouts.get(rollout)
        return [turn for _, turn in sorted(known.turns, key=lambda pair: pair[0])] if known else []

    def record_of_turns(self) -> RecordedGroup:
        """Return what was recorded so far."""
        turns = {rollout: self.turns_of(rollout) for rollout in self.rollouts}
        return RecordedGroup(self.id, self.ordinal, self.policy.version, turns, self.final_refusals())

    def final_refusals(self) -> dict[str, Problem]:
        """Return why the last request of a rollout failed, for each rollout whose last request did."""
        return {
            rollout: session.refusal[1]
            for rollout, session in self.rollouts.items()
            if session.refusal is not None and session.refusal[0] > session.answered
        }


class LiveGroups:
    """All open groups."""

    def __init__(self, base_model: str = "") -> None:
        """`base_model`: id under which every engine of the run serves the base model."""
        self._base_model = base_model
        self._groups: dict[str, LiveGroup] = {}
        self._opened = {True: 0, False: 0}

    def open(
        self, policy: PolicyRef, *, ordinal: int | None = None, record: bool = True, base: bool = False
    ) -> LiveGroup:
        """Open a group that is pinned to that policy.

        `ordinal` determines its seeds. By default it is the number of groups opened before; evaluations (`record`
        False) are counted separately. With `base` the base model responds instead of the policy, so that an evaluation
        can measure it. Engines whose weights were replaced by a policy's (`PolicyKind.weights`) have no base model
        left, so no replica can serve such a group.
        """
        number = self._opened[record] if ordinal is None else ordinal
        self._opened[record] += 1
        serves_base = base or policy.kind is PolicyKind.weights
        model = self._base_model if serves_base else policy.name
        group = LiveGroup(f"g-{secrets.token_hex(16)}", policy, model, number, record, base)
        self._groups[group.id] = group
        return group

    def close(self, group_id: str) -> None:
        """Close the group: its id is rejected from now on."""
        self._groups.pop(group_id, None)

    def get(self, group_id: str) -> LiveGroup | None:
        """Return the group, None if it is not open."""
        return self._groups.get(group_id)

    def policies(self) -> dict[str, PolicyRef]:
        """Return the policies that open groups are pinned to, by name."""
        return {group.policy.name: group.policy for group in self._groups.values() if not group.base}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[LiveGroup]:
        return iter(self._groups.values())
