"""The groups that may talk to the policy now, and what each of their rollouts said.

A group lives from its dispatch to its result. Its id is the only key to the gateway, so it cannot be guessed; an id
that is not (or no longer) in here opens nothing.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from rlrun.schema.wire import PolicyRef

from rlrun_orchestrator.inference import Replica
from rlrun_orchestrator.trajectories import Turn


@dataclass
class LiveGroup:
    """One group: the policy version it is pinned to and the turns recorded so far."""

    id: str
    policy: PolicyRef
    record: bool = True
    """False for evaluations: nothing of theirs is trained on."""
    ordinal: int = 0
    """Number of the group since the beginning of the run, for seeds that do not depend on timing."""
    turns: dict[str, list[tuple[int, Turn]]] = field(default_factory=dict)
    """Rollout id to (order of arrival, turn)."""
    arrivals: int = 0
    home: Replica | None = None
    """The replica that has this group's prefix in its cache."""

    def arrived(self) -> int:
        """The place of a request that has just come in."""
        self.arrivals += 1
        return self.arrivals

    def note(self, rollout: str, place: int, turn: Turn) -> None:
        """Records an answer; answers may overtake one another, so turns are ordered by the arrival of their request."""
        self.turns.setdefault(rollout, []).append((place, turn))

    def recorded(self, rollout: str) -> list[Turn]:
        """The turns of one rollout in order; none for an id that this gateway never saw."""
        return [turn for _, turn in sorted(self.turns.get(rollout, []), key=lambda pair: pair[0])]

    def order(self, rollout: str) -> int:
        """The rollout's rank among its siblings by their first recorded request; unknown ids come last."""
        first = {known: min(place for place, _ in turns) for known, turns in self.turns.items()}
        return sum(place < first[rollout] for place in first.values()) if rollout in first else len(first)


class LiveGroups:
    """All groups that are alive."""

    def __init__(self) -> None:
        self._groups: dict[str, LiveGroup] = {}

    def open(self, policy: PolicyRef, *, record: bool = True, ordinal: int = 0) -> LiveGroup:
        """A new group pinned to that policy."""
        group = LiveGroup(f"g-{secrets.token_hex(16)}", policy, record, ordinal)
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
        return {group.policy.name: group.policy for group in self._groups.values()}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[LiveGroup]:
        return iter(self._groups.values())
