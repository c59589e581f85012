"""Rules of asynchrony: which groups may start, and which may be trained on. Pure.

Version v of the policy exists after v optimizer steps, and step s trains version s into s + 1. A group keeps the
version it was dispatched with. Two rules bound the staleness:

    trained at step s  only if  s - v <= max_async_level
    dispatched with v  only if  the batches of the steps up to v + max_async_level have a slot for it,
                                counting every group that is in flight or ready before it

The first rule is the bound. The second avoids waste, because a group that is started can also be used in time. With
max_async_level 0 the second rule starts exactly one batch per version: strictly on-policy. Batches take the oldest
version first, so that waiting never makes a usable group stale while a younger one is trained on, and the lowest
ordinal among equals, so that the order of arrival has no influence.

`GroupTracker` applies these rules. docs/design/008 explains them.
"""

import math
from dataclasses import dataclass

from rlrun_orchestrator.data.schedule import RunSchedule


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
        """Convert the spec's numbers, in which `batch_size` counts rollouts."""
        return cls(
            groups_per_batch=math.ceil(batch_size / rollouts_per_example),
            max_groups_in_flight=max(1, math.ceil(oversampling_factor * batch_size / rollouts_per_example)),
            max_async_level=max_async_level,
        )


def available_slots(
    limits: SchedulingLimits, schedule: RunSchedule, *, step: int, version: int, in_flight: int, ready: int
) -> int:
    """Return how many groups may start with policy `version` while the batch of `step` is collected."""
    if version < schedule.supervised_steps:
        return 0
    last_step = min(version + limits.max_async_level, schedule.max_steps - 1)
    slots = max(0, last_step - step + 1) * limits.groups_per_batch - in_flight - ready
    return max(0, min(limits.max_groups_in_flight - in_flight, slots))


def is_stale(limits: SchedulingLimits, *, step: int, version: int) -> bool:
    """Return whether no step from `step` on may train on a group of policy `version`."""
    return step - version > limits.max_async_level


def batch_order(version: int, ordinal: int) -> tuple[int, int]:
    """Return the sort key of ready groups for batches: older versions first, then lower ordinals."""
    return version, ordinal
