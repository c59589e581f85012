"""Properties of the group tracker for any order of events: docs/design/008-staleness.md in code."""

import copy
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from rlrun.protocol.policy import PolicyRef
from rlrun_orchestrator.data.example_buffer import Example
from rlrun_orchestrator.data.example_sampler import SampledExample
from rlrun_orchestrator.data.groups import Group, GroupState
from rlrun_orchestrator.data.schedule import RunSchedule
from rlrun_orchestrator.data.sent_batch import SentBatch
from rlrun_orchestrator.rollouts.group_scheduler import SchedulingLimits
from rlrun_orchestrator.rollouts.group_tracker import GroupTracker

from tests.support.ended_groups import finish

MAX_STEPS = 12
ROLLOUTS = 3
"""Rollouts of a group, of which some fail."""


def policy(version: int) -> PolicyRef:
    return PolicyRef(version=version, digest="0123456789abcdef", uri="s3://bucket/policy")


def start(tracker: GroupTracker, ordinal: int) -> Group:
    return tracker.start(f"g{ordinal}", SampledExample(ordinal, Example("words", ordinal)))


def open_groups(tracker: GroupTracker, *states: GroupState) -> list[Group]:
    return [group for group in tracker._groups.values() if group.state in states]


class Run(RuleBasedStateMachine):
    """A model of the run beside the tracker: what was started with which version, and what became of it."""

    @initialize(
        level=st.integers(0, 3),
        longer=st.integers(0, 3),
        groups=st.integers(1, 3),
        factor=st.sampled_from([1, 2, 3]),
        first=st.integers(0, 2),
        tokens=st.sampled_from([None, None, 7, 31]),
    )
    def begin(self, level: int, longer: int, groups: int, factor: int, first: int, tokens: int | None) -> None:
        # The schema's rules: without asynchrony there is no oversampling, and every token is of the newest policy.
        factor, longer = (1, 0) if level == 0 else (factor, longer)
        tokens = tokens if level > 0 else None
        self.limits = SchedulingLimits(groups, groups * factor, level, level + longer, tokens)
        self.schedule = RunSchedule(MAX_STEPS, supervised_steps=first)
        self.tracker = GroupTracker(self.limits, self.schedule, rollouts_per_group=ROLLOUTS)
        self.started: list[Group] = []
        """By ordinal."""
        self.fate: dict[str, str] = {}
        self.flying: list[Group] = []
        self.batch: list[Group] = []
        self.lost: list[Group] = []
        """Groups that an earlier process had in flight. Some may have been in a batch that was trained all the same."""
        self.age_when_ready: dict[str, int] = {}
        self.undisturbed = tokens is None
        """Neither the trainer nor a process was replaced so far, and each group has its expected size."""
        self.tracker.publish(policy(0))

    def end(self, groups: list[Group], fate: str) -> None:
        for group in groups:
            assert group.id not in self.fate, f"{group.id} was {self.fate[group.id]} before it was {fate}"
            self.fate[group.id] = fate
            if group in self.flying:
                self.flying.remove(group)

    @precondition(lambda self: self.tracker.available_slots() > 0)
    @rule(count=st.integers(1, 6))
    def start(self, count: int) -> None:
        for _ in range(min(count, self.tracker.available_slots())):
            group = start(self.tracker, len(self.started))
            self.started.append(group)
            self.flying.append(group)

    @precondition(lambda self: bool(self.flying) and self.tracker.policy is not None)
    @rule(which=st.randoms(use_true_random=False))
    def begin_a_turn(self, which: random.Random) -> None:
        """A turn uses the newest policy, whichever the group began with."""
        assert self.tracker.policy is not None
        which.choice(self.flying).versions.add_turn(self.tracker.policy.version)

    @precondition(lambda self: bool(self.flying) and self.tracker.policy is not None)
    @rule(which=st.randoms(use_true_random=False))
    def fail_a_turn(self, which: random.Random) -> None:
        """A turn that samples nothing leaves the age of its group as it was."""
        assert self.tracker.policy is not None
        versions = which.choice(self.flying).versions
        before = versions.oldest, versions.newest
        versions.begin_turn(self.tracker.policy.version)
        versions.end_turn(self.tracker.policy.version)
        assert (versions.oldest, versions.newest) == before

    @precondition(lambda self: bool(self.flying))
    @rule(
        which=st.randoms(use_true_random=False),
        state=st.sampled_from([GroupState.ready, GroupState.ready, GroupState.filtered, GroupState.errored]),
        valid=st.integers(1, ROLLOUTS),
        advantage=st.booleans(),
    )
    def finish(self, which: random.Random, state: GroupState, valid: int, advantage: bool) -> None:
        group = which.choice(self.flying)
        self.flying.remove(group)
        finish(self.tracker, group, state, valid, left_out=not advantage)
        if group.state is GroupState.ready:
            self.age_when_ready[group.id] = self.tracker.step - group.version
        else:
            assert group.state in (state, GroupState.stale)
            self.fate[group.id] = group.state
        assert not self.tracker.finish(group, state), "a result that comes twice counts once"

    @precondition(lambda self: self.tracker.step >= self.schedule.supervised_steps)
    @rule()
    def take(self) -> None:
        while empty := self.tracker.drop_empty_batch():
            assert not any(group.trained_rollouts for group in empty)
            self.end(empty, "filtered")
        step, ready = self.tracker.step, open_groups(self.tracker, GroupState.ready)
        batch = self.tracker.take_batch()
        if batch is None:
            return
        if self.limits.tokens_per_batch is None:
            sizes, wanted = [len(group.valid_rollouts) for group in batch], self.limits.groups_per_batch * ROLLOUTS
        else:
            sizes, wanted = [group.tokens for group in batch], self.limits.tokens_per_batch
        assert sum(sizes) - max(sizes) < wanted <= sum(sizes), (
            "a batch has as many valid rollouts or tokens as the run says, and less than a group more"
        )
        assert any(group.trained_rollouts for group in batch), "no batch is empty"
        for group in batch:
            lag = step - group.version
            assert 0 <= lag <= self.limits.max_off_policy_steps, "the bound"
            assert self.limits.max_async_level > 0 or lag == 0, "strictly on-policy"
        self.batch = batch
        dropped = self.tracker.drop_stale()
        for group in ready:
            fresh = self.tracker.step - group.version <= self.limits.max_off_policy_steps
            kept = group in open_groups(self.tracker, GroupState.ready)
            assert group in batch or fresh == kept, "surplus stays while it is fresh enough, and no longer"
            late = self.limits.max_off_policy_steps - self.limits.max_async_level < self.age_when_ready[group.id]
            assert group in batch or fresh or late or not self.undisturbed, "what is ready in time is not wasted"
        self.end(dropped, "stale")

    @precondition(lambda self: bool(self.batch))
    @rule()
    def train(self) -> None:
        self.tracker.complete_batch()
        self.end(self.batch, "trained")
        self.batch = []

    @precondition(lambda self: not self.batch and self.schedule.supervised_steps <= self.tracker.step < MAX_STEPS)
    @rule(slow=st.integers(0, 2))
    def make_a_step(self, slow: int) -> None:
        """All goes well, but for the `slow` oldest groups, which are still under way: how groups grow old."""
        self.publish()
        while self.tracker.available_slots():
            self.start(1)
        for group in self.flying[slow:]:
            self.flying.remove(group)
            finish(self.tracker, group, valid=ROLLOUTS)
            self.age_when_ready[group.id] = self.tracker.step - group.version
        self.take()
        if self.batch:
            self.train()

    @precondition(lambda self: self.tracker.step < self.schedule.supervised_steps)
    @rule()
    def train_on_demonstrations(self) -> None:
        assert not self.started or self.tracker.counts().in_flight == 0
        self.tracker.advance(self.tracker.step + 1)

    @rule()
    def publish(self) -> None:
        self.tracker.publish(policy(self.tracker.step - (1 if self.batch else 0)))

    @precondition(lambda self: bool(self.batch))
    @rule(overlap=st.integers(0, 3), known=st.booleans())
    def train_on_another_batch(self, overlap: int, known: bool) -> None:
        """The trainer has made the step of a batch of an earlier process, with some of the same examples."""
        self.undisturbed = False
        lost = self.lost[: self.limits.groups_per_batch] if known else []
        self.lost = self.lost[len(lost) :]
        ordinals = [group.ordinal for group in (*lost, *self.batch[:overlap])]
        sent = SentBatch("x", self.tracker.step - 1, ordinals, len(lost), 0, None, {}) if known else None
        dropped = self.tracker.return_batch(self.tracker.step, sent)
        assert not known or {group.id for group in self.batch[:overlap]} <= {group.id for group in dropped}
        for group in lost:
            assert self.fate[group.id] == "stale"
            self.fate[group.id] = "trained"
        self.end(dropped, "stale")
        self.batch = []

    @rule(kind=st.sampled_from(["rewind", "restart", "close"]), back=st.integers(0, 3))
    def trouble(self, kind: str, back: int) -> None:
        """One rule for all of it, so that there is more life than death."""
        self.undisturbed = False
        match kind:
            case "rewind":
                self.rewind(back)
            case "restart":
                self.restart()
            case _:
                self.close()

    def rewind(self, back: int) -> None:
        step = max(0, self.tracker.step - 1 - back)
        self.end(self.tracker.rewind(step), "stale")
        self.batch = []
        for group in open_groups(self.tracker, *GroupState):
            assert group.versions.newest <= step, "what belongs to a policy that is no more is gone"

    def restart(self) -> None:
        """The orchestrator dies: the next one knows the counts, and nothing that was under way comes back."""
        step = self.tracker.step - (1 if self.batch else 0)
        self.lost = [group for group in self.started if group.id not in self.fate]
        self.end(self.lost, "stale")
        self.batch, self.flying = [], []
        self.tracker = GroupTracker(self.limits, self.schedule, self.tracker.counts(), ROLLOUTS)
        self.tracker.rewind(step)
        self.tracker.publish(policy(step))

    def close(self) -> None:
        self.end(self.tracker.close(), "stale")
        assert {group.id for group in self.started if group.id not in self.fate} == {g.id for g in self.batch}

    @invariant()
    def every_group_has_one_fate_and_the_counters_say_which(self) -> None:
        if not hasattr(self, "tracker"):
            return
        c, fates = self.tracker.counts(), Counter(self.fate.values())
        assert (c.trained, c.filtered, c.errored, c.stale) == tuple(
            fates[fate] for fate in ("trained", "filtered", "errored", "stale")
        )
        assert c.in_flight == len(self.started) - len(self.fate)

    @invariant()
    def outstanding_and_ended_ordinals_have_no_gap_and_no_overlap(self) -> None:
        if not hasattr(self, "tracker"):
            return
        outstanding = [example.ordinal for example in self.tracker.outstanding()]
        ended = [group.ordinal for group in self.started if group.id in self.fate]
        assert sorted(outstanding + ended) == list(range(len(self.started)))

    @invariant()
    def limits_hold(self) -> None:
        if not hasattr(self, "tracker"):
            return
        unused = open_groups(self.tracker, GroupState.in_flight, GroupState.ready)
        lags = [self.tracker.step - group.version for group in unused]
        assert all(0 <= lag <= self.limits.max_off_policy_steps for lag in lags), "what is too old is gone"
        if self.limits.tokens_per_batch is None:
            assert self.tracker.count(GroupState.in_flight) <= self.limits.max_groups_in_flight
        assert self.tracker.count(GroupState.in_batch) == len(self.batch)
        assert self.tracker.available_slots() >= 0

    @invariant()
    def a_batch_is_always_possible(self) -> None:
        """From here on everything succeeds: the run reaches its end, without waiting for anything else."""
        if not hasattr(self, "tracker"):
            return
        tracker, ordinal = copy.deepcopy(self.tracker), 10_000
        tracker.complete_batch()
        while tracker.step < MAX_STEPS:
            if tracker.step < self.schedule.supervised_steps:
                tracker.advance(tracker.step + 1)
                continue
            tracker.publish(policy(tracker.step))
            for _ in range(MAX_STEPS * self.limits.max_groups_in_flight):
                for _ in range(tracker.available_slots()):
                    start(tracker, ordinal)
                    ordinal += 1
                flying = open_groups(tracker, GroupState.in_flight)
                if not flying:
                    break
                finish(tracker, flying[0], valid=ROLLOUTS)
            assert tracker.take_batch() is not None, f"stands still at step {tracker.step}"
            tracker.drop_stale()
            tracker.complete_batch()


@pytest.mark.slow
@pytest.mark.proves("maxAsyncLevel", "oversamplingFactor", "tokenBatchSize")
def test_staleness_accounting_and_progress_hold_for_any_order_of_events() -> None:
    run_state_machine_as_test(Run, settings=settings(max_examples=80, stateful_step_count=50, deadline=None))


@given(
    level=st.integers(0, 4), groups=st.integers(1, 5), factor=st.sampled_from([1.0, 1.5, 2.0, 3.0]), seed=st.randoms()
)
@settings(max_examples=60, deadline=None)
def test_groups_that_finish_in_time_are_all_trained(
    level: int, groups: int, factor: float, seed: random.Random
) -> None:
    """Groups that all come back while their step is open are all trained, whatever the order they come back in."""
    limits = SchedulingLimits.from_rollouts(
        batch_size=groups * 8,
        rollouts_per_example=8,
        oversampling_factor=factor,
        max_async_level=level,
        max_off_policy_steps=level,
    )
    tracker = GroupTracker(limits, RunSchedule(8))
    tracker.publish(policy(0))
    ordinal = 0
    while tracker.step < 8:
        for _ in range(tracker.available_slots()):
            start(tracker, ordinal)
            ordinal += 1
        flying = open_groups(tracker, GroupState.in_flight)
        seed.shuffle(flying)
        oldest = min((group.version for group in flying), default=0)
        # The oldest version comes back first, as it was started first; inside a version any order.
        flying.sort(key=lambda group: group.version > oldest)
        for group in flying:
            finish(tracker, group)
        assert tracker.take_batch() is not None, "the run never stands still"
        tracker.drop_stale()
        tracker.complete_batch()
        tracker.publish(policy(tracker.step))
    assert tracker.counts().stale == 0
    assert tracker.counts().trained == 8 * groups == ordinal
