"""Rules of asynchrony: which groups may start, and which may be trained on.

Version v of the policy exists after v optimizer steps, and step s trains version s into s + 1. A turn is sampled by the
newest version that is published when the turn starts. Two rules limit the asynchrony, where v is the version of a
group's oldest token in the first rule, and the newest version in the second:

    trained at step s  only if  s - v <= max_off_policy_steps
    dispatched with v  only if  the batches of the steps up to v + max_async_level have a slot for it,
                                counting every group that is in flight or ready before it

The first rule limits the age of tokens. The second limits how far generation runs ahead of the trainer. With
max_async_level 0, exactly one batch is started per version: strictly on-policy. Batches take the oldest version first,
so that waiting never makes a usable group stale while a younger one is trained on, and the lowest ordinal among equals,
so that the order of arrival has no influence.

`GroupTracker` applies these rules. docs/design/008 explains them.
"""

import math
from dataclasses import dataclass, replace

from rlrun_orchestrator.data.schedule import RunSchedule


@dataclass(frozen=True)
class SchedulingLimits:
    """Limits for the two scheduling rules in the module docstring, counted in groups rather than rollouts."""

    groups_per_batch: int
    max_groups_in_flight: int
    max_async_level: int
    max_off_policy_steps: int
    tokens_per_batch: int | None = None
    """Number of tokens that complete a batch. If None, `groups_per_batch` groups complete it."""

    @classmethod
    def from_rollouts(
        cls,
        *,
        batch_size: int,
        rollouts_per_example: int,
        oversampling_factor: float,
        max_async_level: int,
        max_off_policy_steps: int,
        token_batch_size: int | None = None,
    ) -> "SchedulingLimits":
        """Convert the spec's numbers to limits. `batch_size` counts rollouts."""
        return cls(
            groups_per_batch=math.ceil(batch_size / rollouts_per_example),
            max_groups_in_flight=max(1, math.ceil(oversampling_factor * batch_size / rollouts_per_example)),
            max_async_level=max_async_level,
            max_off_policy_steps=max_off_policy_steps,
            tokens_per_batch=token_batch_size,
        )

    def for_groups_of(self, tokens: float) -> "SchedulingLimits":
        """Return the limits for batches of `tokens_per_batch`. `tokens` is the mean number of tokens of a group."""
        assert self.tokens_per_batch is not None
        groups = self.tokens_per_batch / tokens
        oversampling = self.max_groups_in_flight / self.groups_per_batch
        return replace(
            self,
            groups_per_batch=math.ceil(groups),
            max_groups_in_flight=max(1, math.ceil(oversampling * groups)),
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
    """Return True if no step from `step` on may train on a group whose oldest token is of policy `version`."""
    return step - version > limits.max_off_policy_steps
