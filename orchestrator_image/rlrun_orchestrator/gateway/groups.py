"""The groups that may talk to the policy now, and what each of their rollouts said.

A group lives from its dispatch to its result. Its id is the only key to the gateway, so it cannot be guessed; an id
that is not (or no longer) in here opens nothing.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from rlrun.schema.wire import PolicyKind, PolicyRef

from rlrun_orchestrator.gateway.prefixes import Conversation
from rlrun_orchestrator.inference import Replica
from rlrun_orchestrator.rollouts import RecordedGroup
from rlrun_orchestrator.trajectories import Turn


@dataclass(slots=True)
class Speaker:
    """One rollout as the gateway knows it: everything by the order in which requests came, nothing by the clock."""

    order: int
    """Its number among the rollouts of its group, by first appearance."""
    requests: int = 0
    turns: list[tuple[int, Turn]] = field(default_factory=list)
    """(order of arrival, turn)."""
    conversation: Conversation | None = None
    """Its newest chat, whose exact tokens the next one has to begin with."""


@dataclass
class LiveGroup:
    """One group: the policy version it is pinned to and the turns recorded so far."""

    id: str
    policy: PolicyRef
    model: str
    """What the engine calls the model that answers: the policy's name, or the base model's id."""
    ordinal: int = 0
    """Number of the group since the beginning of the run: what its seeds are made of."""
    record: bool = True
    """False for evaluations: nothing of theirs is trained on."""
    base: bool = False
    """True where the base model answers and not the policy."""
    rollouts: dict[str, Speaker] = field(default_factory=dict)
    arrivals: int = 0
    in_flight: int = 0
    """Requests that the gateway works on now."""
    home: Replica | None = None
    """The replica that has this group's prefix in its cache."""

    @property
    def needs(self) -> str | None:
        """The policy that a replica must serve; None where every one that answers will do."""
        return None if self.base else self.policy.name

    def arrived(self) -> int:
        """The place of a request that has just come in."""
        self.arrivals += 1
        return self.arrivals

    def speaker(self, rollout: str) -> Speaker:
        """What is known of a rollout; one that is new here gets the next number."""
        found = self.rollouts.get(rollout)
        if found is None:
            found = self.rollouts[rollout] = Speaker(len(self.rollouts))
        return found

    def note(self, rollout: str, place: int, turn: Turn) -> None:
        """Records an answer; answers may overtake one another, so turns are ordered by the arrival of their request."""
        self.speaker(rollout).turns.append((place, turn))

    def recorded(self, rollout: str) -> list[Turn]:
        """The turns of one rollout in order; none for an id that this gateway never saw."""
        known = self.rollouts.get(rollout)
        return [turn for _, turn in sorted(known.turns, key=lambda pair: pair[0])] if known else []

    def record_of_turns(self) -> RecordedGroup:
        """Return what was recorded so far."""
        turns = {rollout: self.recorded(rollout) for rollout in self.rollouts}
        return RecordedGroup(self.id, self.ordinal, self.policy.version, turns)


class LiveGroups:
    """All groups that are alive."""

    def __init__(self, base_model: str = "") -> None:
        """`base_model`: the id under which every engine of the run serves the model itself."""
        self._base_model = base_model
        self._groups: dict[str, LiveGroup] = {}
        self._opened = {True: 0, False: 0}

    def open(
        self, policy: PolicyRef, *, ordinal: int | None = None, record: bool = True, base: bool = False
    ) -> LiveGroup:
        """A new group pinned to that policy.

        `ordinal` decides its seeds; without one it is the number of groups opened before, evaluations (`record`
        False) apart from the others. With `base` the base model answers instead of the policy, whatever the run
        started from: that is how an evaluation measures it. Engines whose weights were replaced by a policy's
        (`PolicyKind.weights`) have no base model left, so such a group waits for a replica in vain.
        """
        number = self._opened[record] if ordinal is None else ordinal
        self._opened[record] += 1
        whole = base or policy.kind is PolicyKind.weights
        model = self._base_model if whole else policy.name
        group = LiveGroup(f"g-{secrets.token_hex(16)}", policy, model, number, record, base)
        self._groups[group.id] = group
        return group

    def close(self, group_id: str) -> None:
        """From now on the id opens nothing."""
        self._groups.pop(group_id, None)

    def get(self, group_id: str) -> LiveGroup | None:
        """The group, while it lives."""
        return self._groups.get(group_id)

    def policies(self) -> dict[str, PolicyRef]:
        """The policies that live groups are pinned to, by name."""
        return {group.policy.name: group.policy for group in self._groups.values() if not group.base}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[LiveGroup]:
        return iter(self._groups.values())
