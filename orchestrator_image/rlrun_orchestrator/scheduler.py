"""Which groups may start, which may be trained on, and what became of each: the bookkeeping of asynchrony, pure.

Version v of the policy exists after v optimizer steps, and step s trains version s into s + 1. A group keeps the
version it was dispatched with. Two rules carry the staleness bound:

    trained at step s  only if  s - v <= max_async_level
    dispatched with v  only if  the batches of the steps up to v + max_async_level have room for it,
                                counting every group that is in flight or ready before it

The first rule is the bound; the second makes it cheap, because what is started can also be used in time. With
max_async_level 0 the second rule starts exactly one batch per version: strictly on-policy. Batches take the oldest
version first, so that waiting never turns a usable group stale while a younger one is trained, and the lowest ordinal
among equals, so that the order of arrival decides nothing.

Every dispatched group ends in exactly one of trained, filtered, errored, stale. docs/design/008 has the argument.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from rlrun.schema.wire import GroupCounts

from rlrun_orchestrator.cadence import RunSchedule


class Verdict(StrEnum):
    """What a finished group is good for."""

    usable = "usable"
    filtered = "filtered"
    errored = "errored"


@dataclass(frozen=True)
class SchedulingLimits:
    """Sizes in groups, not rollouts."""

    groups_per_batch: int
    max_groups_in_flight: int
    max_async_level: int

    @classmethod
    def from_rollouts(
        cls, *, batch_size: int, rollouts_per_example: int, oversampling_factor: float, max_async_level: int
    ) -> "SchedulingLimits":
        """Convert the run's own numbers, in which `batch_size` counts rollouts."""
        return cls(
            groups_per_batch=math.ceil(batch_size / rollouts_per_example),
            max_groups_in_flight=max(1, math.ceil(oversampling_factor * batch_size / rollouts_per_example)),
            max_async_level=max_async_level,
        )


class Place(NamedTuple):
    """What decides a group's turn: older versions first, then lower ordinals."""

    version: int
    ordinal: int


@dataclass
class Scheduler:
    """The state of all groups. `step` is the step whose batch is collected now, `version` the policy for new groups."""

    limits: SchedulingLimits
    schedule: RunSchedule
    step: int = 0
    version: int | None = None
    in_flight: dict[str, Place] = field(default_factory=dict)
    """By group id."""
    ready: dict[str, Place] = field(default_factory=dict)
    """Scored and usable."""
    taken: dict[str, Place] = field(default_factory=dict)
    """In the batch that the trainer has now."""
    trained: int = 0
    filtered: int = 0
    errored: int = 0
    stale: int = 0

    def room(self) -> int:
        """How many groups may be dispatched now."""
        if self.version is None or self.version < self.schedule.supervised_steps:
            return 0
        last_step = min(self.version + self.limits.max_async_level, self.schedule.max_steps - 1)
        places = max(0, last_step - self.step + 1) * self.limits.groups_per_batch
        places -= len(self.in_flight) + len(self.ready)
        return max(0, min(self.limits.max_groups_in_flight - len(self.in_flight), places))

    @property
    def waits_for_policy(self) -> bool:
        """Whether only a newer policy can bring another batch together."""
        missing = self.limits.groups_per_batch - len(self.ready)
        return missing > len(self.in_flight) and self.room() == 0

    def dispatched(self, group: str, ordinal: int) -> int:
        """Notes a group that starts with the newest version, and says which that is. Raises ValueError without one."""
        if self.version is None:
            raise ValueError("no policy has been published yet")
        self.in_flight[group] = Place(self.version, ordinal)
        return self.version

    def finished(self, group: str, verdict: Verdict) -> bool:
        """Notes the end of a group; False when it had already been given up as stale."""
        place = self.in_flight.pop(group, None)
        if place is None:
            return False
        if verdict is Verdict.filtered:
            self.filtered += 1
        elif verdict is Verdict.errored:
            self.errored += 1
        elif self._too_old(place):
            self.stale += 1
        else:
            self.ready[group] = place
        return True

    def take_batch(self) -> list[str] | None:
        """The groups of the next batch in the order of their ordinals, or None while there are too few.

        The step counts as begun: `step` moves on, and what became too old by that is to be dropped (`expire`).
        """
        if len(self.ready) < self.limits.groups_per_batch or self.taken or self.step >= self.schedule.max_steps:
            return None
        oldest_first = sorted(self.ready, key=self.ready.__getitem__)
        batch = oldest_first[: self.limits.groups_per_batch]
        self.taken = {group: self.ready.pop(group) for group in batch}
        self.step += 1
        return sorted(batch, key=lambda group: self.taken[group].ordinal)

    def batch_trained(self) -> None:
        """The trainer has made its step with the batch that was taken."""
        self.trained += len(self.taken)
        self.taken = {}

    def put_back(self) -> None:
        """The trainer has made its step with another batch: what was taken is ready for a later one, if not too old."""
        self.ready |= self.taken
        self.taken = {}

    def trained_before(self, groups: int) -> None:
        """So many groups that an earlier process had under way, and that count as stale, were trained on after all."""
        self.trained += groups
        self.stale -= groups

    def drop(self, ordinals: Collection[int]) -> list[str]:
        """Drops the groups with these ordinals and returns them: those in flight are to be cancelled."""
        found = [group for group, place in (self.in_flight | self.ready).items() if place.ordinal in ordinals]
        return self._drop(found)

    def stepped(self, step: int) -> None:
        """The trainer has made a step without groups and is at `step` now."""
        self.step = step

    def published(self, version: int) -> None:
        """From now on new groups start with this version."""
        self.version = version

    def expire(self) -> list[str]:
        """Drops every group that no future step may train on and returns them: those in flight are to be cancelled."""
        gone = [group for group, place in (self.in_flight | self.ready).items() if self._too_old(place)]
        return self._drop(gone)

    def rewind(self, step: int) -> list[str]:
        """The trainer is back at `step`: the batch it had is lost, and groups of later versions belong to no policy."""
        self.stale += len(self.taken)
        lost = list(self.taken)
        self.taken = {}
        self.step = step
        if self.version is not None and self.version > step:
            self.version = None
        gone = [group for group, place in (self.in_flight | self.ready).items() if place.version > step]
        return lost + self._drop(gone) + self.expire()

    def close(self) -> list[str]:
        """The run ends: whatever is left will not be trained on."""
        return self._drop([*self.in_flight, *self.ready])

    def counts(self) -> GroupCounts:
        """All groups ever dispatched; `in_flight` includes those that wait for their step."""
        return GroupCounts(
            trained=self.trained,
            filtered=self.filtered,
            errored=self.errored,
            stale=self.stale,
            in_flight=len(self.in_flight) + len(self.ready) + len(self.taken),
        )

    def _too_old(self, place: Place) -> bool:
        return self.step - place.version > self.limits.max_async_level

    def _drop(self, groups: list[str]) -> list[str]:
        for group in groups:
            if self.in_flight.pop(group, None) is None:
                del self.ready[group]
        self.stale += len(groups)
        return groups
