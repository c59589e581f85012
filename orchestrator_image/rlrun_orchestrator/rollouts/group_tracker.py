"""State of every training group from its start to its end. Only this module changes it.

A group leaves the tracker in exactly one of the states trained, filtered, errored and stale, and is counted under that
state. `group_scheduler` has the rules. The caller that receives dropped groups cancels their tasks.
"""

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable

from rlrun.protocol.orchestrator import GroupCounts
from rlrun.protocol.policy import PolicyRef
from rlrun.protocol.train_batch import MAX_SAMPLES

from rlrun_orchestrator.data.example_buffer import Example
from rlrun_orchestrator.data.example_sampler import SampledExample
from rlrun_orchestrator.data.groups import Group, GroupState, VersionSpan
from rlrun_orchestrator.data.schedule import RunSchedule
from rlrun_orchestrator.data.sent_batch import SentBatch
from rlrun_orchestrator.rollouts.group_scheduler import SchedulingLimits, available_slots, is_stale

SIZES_KEPT = 16
"""Number of an environment's newest groups from whose rollouts the size of the next group is estimated."""
COUNTED = (GroupState.trained, GroupState.filtered, GroupState.errored, GroupState.stale)
"""States in which a group leaves the tracker."""


class GroupTracker:
    """Groups that have not ended, and counts of the groups that have ended."""

    def __init__(
        self,
        limits: SchedulingLimits,
        schedule: RunSchedule,
        counts: GroupCounts | None = None,
        rollouts_per_group: int = 1,
    ) -> None:
        """`counts` has the counts of the run's earlier processes, whose groups in flight count as stale. A batch has at
        least `rollouts_per_group` valid rollouts for each of its `limits.groups_per_batch` groups. If rollouts fail,
        the batch contains more groups.

        If `limits.tokens_per_batch` is set, a batch has at least this number of tokens instead, and the numbers of
        groups in `limits` apply only until the first group has ended.
        """
        self._limits = limits
        self._rollouts_per_group = rollouts_per_group
        self.schedule = schedule
        self.step = 0
        """Step whose batch is being collected."""
        self.policy: PolicyRef | None = None
        """Policy of new groups. If None, no group may start."""
        before = counts or GroupCounts()
        self._ended = Counter({state: getattr(before, state) for state in COUNTED})
        self._ended[GroupState.stale] += before.in_flight
        self._groups: dict[str, Group] = {}
        self._sizes: dict[str, deque[int]] = {}
        """Numbers of rollouts, or of tokens, in the newest finished groups of each environment."""

    # --- queries ------------------------------------------------------------------------------------------------------

    @property
    def limits(self) -> SchedulingLimits:
        """Limits in groups. If batches are measured in tokens, they follow from the mean size of the newest groups."""
        return self._limits if self._limits.tokens_per_batch is None else self._limits.for_groups_of(self._usual_size)

    def available_slots(self) -> int:
        """Return how many groups may start now."""
        if self.policy is None:
            return 0
        return available_slots(
            self.limits,
            self.schedule,
            step=self.step,
            version=self.policy.version,
            in_flight=math.ceil(self._expected_size() / self._usual_size),
            ready=math.floor(self._ready_size() / self._usual_size),
        )

    @property
    def waits_for_policy(self) -> bool:
        """True if the next batch cannot be completed before a newer policy is published."""
        missing = self._batch_size - self._ready_size()
        return missing > self._expected_size() and self.available_slots() == 0

    def slots_of(self, environment: str) -> float:
        """Return the number of slots that a group of the environment takes. The number is greater than 1 if the newest
        groups had more rollouts than requested, for example because episodes have several agents. If batches are
        measured in tokens, it is the mean number of tokens of the environment's newest groups, divided by the mean over
        all environments.
        """
        sizes = self._sizes.get(environment)
        slots = sum(sizes) / len(sizes) / self._usual_size if sizes else 1.0
        return slots if self._limits.tokens_per_batch is not None else max(1.0, slots)

    def count(self, state: GroupState) -> int:
        """Return how many groups are in `state`."""
        return sum(group.state is state for group in self._groups.values())

    def outstanding(self) -> list[SampledExample]:
        """Return the examples of all groups that have not ended."""
        return [group.sampled for group in self._groups.values()]

    def counts(self) -> GroupCounts:
        """Return the run's numbers of groups by outcome. `in_flight` is the number of groups that have not ended."""
        # `return_batch` may subtract groups that a saved state, written before its process ended, does not contain.
        return GroupCounts(**{state: max(0, self._ended[state]) for state in COUNTED}, in_flight=len(self._groups))

    # --- one group ----------------------------------------------------------------------------------------------------

    def start(self, group_id: str, sampled: SampledExample, versions: VersionSpan | None = None) -> Group:
        """Track a group that starts with the current policy.

        The caller updates `versions` as the group's turns begin and end; if it is None, the group counts as using only
        the current policy. Raises ValueError if no policy has been published.
        """
        if self.policy is None:
            raise ValueError("no policy has been published yet")
        group = self._groups[group_id] = Group(group_id, sampled, versions or VersionSpan(self.policy.version))
        return group

    def finish(self, group: Group, state: GroupState) -> bool:
        """Record that a group in flight was scored as `ready`, `filtered` or `errored`. A ready group becomes stale if
        no step may train on it anymore. Returns False for a group that was dropped before.
        """
        if group.state is not GroupState.in_flight:
            return False
        if group.rollouts and state is not GroupState.errored:
            size = len(group.rollouts) if self._limits.tokens_per_batch is None else max(1, self._size_of(group))
            self._sizes.setdefault(group.example.environment, deque(maxlen=SIZES_KEPT)).append(size)
        if state is not GroupState.ready:
            self._end(group, state)
        elif self._is_stale(group):
            self._end(group, GroupState.stale)
        else:
            group.enter(state)
            group.size = self._size_of(group)
        return True

    def _end(self, group: Group, state: GroupState) -> None:
        group.enter(state)
        self._ended[state] += 1
        del self._groups[group.id]

    def _size_of(self, group: Group) -> int:
        """Return the number of the group's valid rollouts or, if batches are measured in tokens, of their tokens. A
        sequence then counts as at least 1 / MAX_SAMPLES of a batch, so that many short sequences complete a batch
        before it has too many samples.
        """
        tokens = self._limits.tokens_per_batch
        if tokens is None:
            return len(group.valid_rollouts)
        return max(group.tokens, math.ceil(group.sequences * tokens / MAX_SAMPLES))

    # --- batches ------------------------------------------------------------------------------------------------------

    def take_batch(self) -> list[Group] | None:
        """Return the groups of the next batch, ordered by ordinal, or None while the groups have too few valid
        rollouts or tokens.

        Advances the step. The caller removes the groups that become stale with `drop_stale`.
        """
        batch = self._next_batch()
        if not batch:
            return None
        for group in batch:
            group.enter(GroupState.in_batch)
        self.step += 1
        return sorted(batch, key=lambda group: group.ordinal)

    def drop_empty_batch(self) -> list[Group]:
        """Drop the groups of the next batch if none of their rollouts would be trained on, count them as filtered, and
        return them.
        """
        batch = self._next_batch()
        if any(group.trained_rollouts for group in batch):
            return []
        for group in batch:
            group.filter_reason = group.untrained_reason
            self._end(group, GroupState.filtered)
        return batch

    def complete_batch(self) -> None:
        """Count the groups of the batch as trained and remove them."""
        for group in self._in_batch():
            self._end(group, GroupState.trained)

    def return_batch(self, step: int, trained: SentBatch | None) -> list[Group]:
        """Advance to `step`, which the trainer made with the batch `trained` of an earlier process. If that batch is
        unknown, `trained` is None. The batch that was taken is ready again. Returns the dropped groups, which are now
        stale or whose examples were part of `trained`.
        """
        for group in self._in_batch():
            group.enter(GroupState.ready)
        self.step = step
        dropped: list[Group] = []
        if trained is not None:
            # The groups of this batch were counted as stale when their process ended.
            self._ended[GroupState.trained] += trained.groups
            self._ended[GroupState.stale] -= trained.groups
            dropped = self.drop_ordinals(trained.ordinals)
        return dropped + self.drop_stale()

    # --- the run ------------------------------------------------------------------------------------------------------

    def publish(self, policy: PolicyRef) -> None:
        """Start new groups with `policy`."""
        self.policy = policy

    def advance(self, step: int) -> None:
        """Advance to `step`, which the trainer made without groups."""
        self.step = step

    def rewind(self, step: int) -> list[Group]:
        """Return to `step` with the trainer. Returns the dropped groups: stale groups, groups of the batch in progress,
        and groups of later policies, which are lost.
        """
        self.step = step
        if self.policy is not None and self.policy.version > step:
            self.policy = None
        lost = (g for g in self._groups.values() if g.state is GroupState.in_batch or g.versions.newest > step)
        return self._drop(lost) + self.drop_stale()

    def drop_stale(self) -> list[Group]:
        """Drop every group that no future step may train on."""
        return self._drop(group for group in self._open() if self._is_stale(group))

    def drop_ordinals(self, ordinals: Collection[int]) -> list[Group]:
        """Drop the groups with these ordinals."""
        return self._drop(group for group in self._open() if group.ordinal in ordinals)

    def close(self) -> list[Group]:
        """Drop every group except those in the batch."""
        return self._drop(self._open())

    def _next_batch(self) -> list[Group]:
        """Return the groups of the next batch, or none while it is incomplete or the trainer has a batch."""
        if self._ready_size() < self._batch_size or self.count(GroupState.in_batch):
            return []
        if self.schedule.is_last(self.step):
            return []
        batch: list[Group] = []
        size = sequences = 0
        for group in self._ready_groups():
            sequences += group.sequences
            if batch and sequences > MAX_SAMPLES and self._limits.tokens_per_batch is not None:
                break
            batch.append(group)
            size += group.size
            if size >= self._batch_size:
                break
        return batch

    def _ready_groups(self) -> list[Group]:
        """Return the ready groups, oldest versions first. Within a version, the third and later groups of an example
        come last.
        """
        ready = [group for group in self._groups.values() if group.state is GroupState.ready]
        copies: Counter[Example] = Counter()
        repeated: set[str] = set()
        for group in sorted(ready, key=lambda group: (group.version, group.ordinal)):
            copies[group.example] += 1
            if copies[group.example] > 2:
                repeated.add(group.id)
        return sorted(ready, key=lambda group: (group.version, group.id in repeated, group.ordinal))

    def _ready_size(self) -> int:
        return sum(group.size for group in self._groups.values() if group.state is GroupState.ready)

    def _expected_size(self) -> float:
        """Return the expected number of rollouts or tokens from the groups in flight."""
        running = Counter(
            group.example.environment for group in self._groups.values() if group.state is GroupState.in_flight
        )
        return sum(count * self.slots_of(name) for name, count in running.items()) * self._usual_size

    @property
    def _batch_size(self) -> int:
        """Number of rollouts or tokens that complete a batch."""
        return self._limits.tokens_per_batch or self._limits.groups_per_batch * self._rollouts_per_group

    @property
    def _usual_size(self) -> float:
        """Number of rollouts or tokens that a group has on average."""
        if self._limits.tokens_per_batch is None:
            return self._rollouts_per_group
        sizes = [size for newest in self._sizes.values() for size in newest]
        return sum(sizes) / len(sizes) if sizes else self._limits.tokens_per_batch / self._limits.groups_per_batch

    def _open(self) -> list[Group]:
        return [group for group in self._groups.values() if group.state is not GroupState.in_batch]

    def _in_batch(self) -> list[Group]:
        return [group for group in self._groups.values() if group.state is GroupState.in_batch]

    def _is_stale(self, group: Group) -> bool:
        return is_stale(self.limits, step=self.step, version=group.version)

    def _drop(self, groups: Iterable[Group]) -> list[Group]:
        dropped = list(groups)
        for group in dropped:
            self._end(group, GroupState.stale)
        return dropped
