"""One owner of the state of every group."""

import pytest
from rlrun.protocol.orchestrator import GroupCounts
from rlrun.protocol.policy import PolicyRef
from rlrun_orchestrator.data.example_buffer import Example
from rlrun_orchestrator.data.example_sampler import SampledExample
from rlrun_orchestrator.data.groups import Group, GroupOutcome
from rlrun_orchestrator.data.schedule import RunSchedule
from rlrun_orchestrator.data.sent_batch import SentBatch
from rlrun_orchestrator.rollouts.group_scheduler import SchedulingLimits
from rlrun_orchestrator.rollouts.group_tracker import GroupState, GroupTracker, TrackedGroup


def policy(version: int) -> PolicyRef:
    return PolicyRef(version=version, digest="0123456789abcdef", uri="s3://bucket/policy")


def example(ordinal: int) -> SampledExample:
    return SampledExample(ordinal, Example("words", ordinal))


def make_tracker(
    groups: int = 4, factor: int = 2, level: int = 2, oldest: int | None = None, max_steps: int = 100
) -> GroupTracker:
    oldest = level if oldest is None else oldest
    return GroupTracker(SchedulingLimits(groups, groups * factor, level, oldest), RunSchedule(max_steps))


def start_all(tracker: GroupTracker, first: int = 0) -> list[str]:
    """Fill every slot."""
    return [tracker.start(f"g{n}", example(n)).id for n in range(first, first + tracker.available_slots())]


def names(groups: list[TrackedGroup] | None) -> list[str] | None:
    return [group.id for group in groups] if groups is not None else None


def test_no_group_starts_without_a_policy() -> None:
    tracker = make_tracker()
    assert tracker.available_slots() == 0
    with pytest.raises(ValueError, match="no policy"):
        tracker.start("g", example(0))


def test_a_group_is_as_old_as_its_oldest_turn() -> None:
    tracker = make_tracker()
    tracker.publish(policy(0))
    group = tracker.start("g", example(5))
    tracker.publish(policy(1))
    assert (group.version, group.ordinal, group.state) == (0, 5, GroupState.in_flight)
    group.versions.add_turn(1)
    assert group.version == 1, "the policy that it was dispatched with sampled nothing"
    group.versions.add_turn(3)
    assert group.version == 1


def test_a_rewind_drops_groups_with_a_turn_of_a_later_policy() -> None:
    tracker = make_tracker(level=2, oldest=8)
    tracker.publish(policy(0))
    kept, lost = tracker.start("kept", example(0)), tracker.start("lost", example(1))
    kept.versions.add_turn(0)
    for version in (0, 2):
        lost.versions.add_turn(version)
    tracker.advance(3)
    assert tracker.rewind(1) == [lost]
    assert tracker.outstanding() == [kept.example]


def test_long_groups_are_kept_beyond_the_level_until_their_oldest_token_is_too_old() -> None:
    tracker = make_tracker(groups=1, level=2, oldest=4)
    tracker.publish(policy(0))
    slow = tracker.start("slow", example(0))
    for step in range(1, 6):
        assert tracker.drop_stale() == []
        tracker.start(f"g{step}", example(step))
        tracker.finish(f"g{step}", GroupOutcome.usable)
        assert tracker.take_batch() is not None
        tracker.complete_batch()
        tracker.publish(policy(step))
    assert tracker.step == 5
    assert tracker.drop_stale() == [slow]


def test_a_usable_group_is_ready_then_in_the_batch_and_then_trained() -> None:
    tracker = make_tracker(groups=1)
    tracker.publish(policy(0))
    tracker.start("g", example(5))
    result = Group("g", Example("words", 5), 0)
    group = tracker.finish("g", GroupOutcome.usable, result)
    assert group is not None
    assert (group.state, group.result) == (GroupState.ready, result)
    assert tracker.take_batch() == [group]
    assert group.state is GroupState.in_batch
    assert tracker.outstanding() == [example(5)]
    tracker.complete_batch()
    assert tracker.outstanding() == []
    assert tracker.counts() == GroupCounts(trained=1)


@pytest.mark.parametrize("outcome", [GroupOutcome.filtered, GroupOutcome.errored])
def test_any_other_group_ends_and_leaves_its_slot(outcome: GroupOutcome) -> None:
    tracker = make_tracker(level=0, factor=1)
    tracker.publish(policy(0))
    first = start_all(tracker)[0]
    assert tracker.finish(first, outcome) is not None
    assert tracker.available_slots() == 1
    assert getattr(tracker.counts(), outcome.value) == 1
    assert tracker.finish(first, GroupOutcome.usable) is None, "a result that comes twice counts once"


def test_level_zero_starts_one_batch_per_version() -> None:
    tracker = make_tracker(level=0, factor=1)
    tracker.publish(policy(0))
    for group in start_all(tracker):
        tracker.finish(group, GroupOutcome.usable)
    assert len(tracker.take_batch() or []) == 4
    assert tracker.available_slots() == 0, "step 1 may only be trained on version 1"
    assert tracker.waits_for_policy
    tracker.complete_batch()
    tracker.publish(policy(1))
    assert tracker.available_slots() == 4
    assert not tracker.waits_for_policy
    assert tracker.counts().stale == 0


def test_only_one_batch_is_taken_at_a_time() -> None:
    tracker = make_tracker(groups=1)
    tracker.publish(policy(0))
    for group in start_all(tracker):
        tracker.finish(group, GroupOutcome.usable)
    assert names(tracker.take_batch()) == ["g0"]
    assert tracker.take_batch() is None
    tracker.complete_batch()
    assert names(tracker.take_batch()) == ["g1"]


def test_the_oldest_version_is_trained_first() -> None:
    tracker = make_tracker(groups=1)
    tracker.publish(policy(0))
    tracker.start("old", example(1))
    tracker.publish(policy(1))
    tracker.start("new", example(0))
    for group in ("new", "old"):
        tracker.finish(group, GroupOutcome.usable)
    assert names(tracker.take_batch()) == ["old"]


def test_a_batch_is_in_the_order_of_the_ordinals_and_not_of_arrival() -> None:
    tracker = make_tracker(level=0, factor=1)
    tracker.publish(policy(0))
    started = start_all(tracker)
    for group in reversed(started):
        tracker.finish(group, GroupOutcome.usable)
    assert names(tracker.take_batch()) == started


def test_groups_made_stale_by_a_step_are_dropped_and_counted_once() -> None:
    tracker = make_tracker(groups=1, level=1)
    tracker.publish(policy(0))
    for ordinal, name in enumerate("abc"):
        tracker.start(name, example(ordinal))
    tracker.finish("a", GroupOutcome.usable)
    tracker.take_batch()
    tracker.complete_batch()
    assert tracker.drop_stale() == [], "b and c may still be trained at step 1"
    tracker.finish("b", GroupOutcome.usable)
    tracker.take_batch()
    assert names(tracker.drop_stale()) == ["c"]
    assert tracker.finish("c", GroupOutcome.usable) is None
    assert tracker.counts().stale == 1


def test_a_result_that_comes_too_late_is_stale() -> None:
    tracker = make_tracker(groups=1, level=0, factor=1)
    tracker.publish(policy(0))
    tracker.start("g", example(0))
    tracker.advance(1)
    assert tracker.finish("g", GroupOutcome.usable) is not None
    assert (tracker.counts().stale, tracker.outstanding()) == (1, [])


def test_after_a_rewind_groups_of_later_policies_and_the_batch_are_dropped() -> None:
    tracker = make_tracker(groups=1, factor=4, level=4)
    tracker.advance(5)
    tracker.publish(policy(4))
    tracker.start("common", example(0))
    tracker.publish(policy(5))
    for ordinal, name in enumerate(("future", "taken"), start=1):
        tracker.start(name, example(ordinal))
    tracker.finish("taken", GroupOutcome.usable)
    assert names(tracker.take_batch()) == ["taken"]
    assert sorted(names(tracker.rewind(4)) or []) == ["future", "taken"]
    assert tracker.outstanding() == [example(0)]
    assert (tracker.policy, tracker.step, tracker.counts().stale) == (None, 4, 2)


def test_a_returned_batch_is_ready_again_without_the_examples_of_the_other_batch() -> None:
    tracker = make_tracker(groups=2, level=2)
    tracker.publish(policy(0))
    for group in start_all(tracker):
        tracker.finish(group, GroupOutcome.usable)
    assert names(tracker.take_batch()) == ["g0", "g1"]
    trained = SentBatch("x", step=0, ordinals=[1, 7], groups=2, tokens=9, reward=0.5, values={})
    assert names(tracker.return_batch(1, trained)) == ["g1"]
    assert names(tracker.take_batch()) == ["g0", "g2"], "of the other one nothing is trained twice"
    counts = tracker.counts()
    assert (counts.trained, counts.stale) == (2, 1 - 2), "what the process before had in flight is in the counts before"


def test_a_batch_that_is_returned_too_late_is_dropped() -> None:
    tracker = make_tracker(groups=1, level=0, factor=1)
    tracker.publish(policy(0))
    for group in start_all(tracker):
        tracker.finish(group, GroupOutcome.usable)
    tracker.take_batch()
    assert names(tracker.return_batch(1, None)) == ["g0"]
    assert tracker.counts() == GroupCounts(stale=1)


def test_groups_of_an_earlier_process_are_stale() -> None:
    before = GroupCounts(trained=5, filtered=1, errored=2, stale=3, in_flight=6)
    tracker = GroupTracker(SchedulingLimits(1, 1, 0, 0), RunSchedule(9), before)
    assert tracker.counts() == GroupCounts(trained=5, filtered=1, errored=2, stale=9)


def test_at_the_end_all_groups_but_those_of_the_batch_are_dropped() -> None:
    tracker = make_tracker(groups=1, level=2)
    tracker.publish(policy(0))
    for group in start_all(tracker)[:2]:
        tracker.finish(group, GroupOutcome.usable)
    tracker.take_batch()
    assert names(tracker.close()) == ["g1"]
    assert tracker.counts() == GroupCounts(stale=1, in_flight=1)


def test_steps_on_demonstrations_start_no_groups() -> None:
    tracker = GroupTracker(SchedulingLimits(2, 4, 2, 8), RunSchedule(10, supervised_steps=3))
    for step in range(3):
        tracker.publish(policy(step))
        assert tracker.available_slots() == 0
        tracker.advance(step + 1)
    tracker.publish(policy(3))
    assert tracker.available_slots() == 4


def test_an_extended_schedule_makes_room_for_more_groups() -> None:
    tracker = make_tracker(groups=4, level=2, max_steps=1)
    tracker.publish(policy(0))
    assert len(start_all(tracker)) == 4
    assert tracker.available_slots() == 0
    tracker.schedule.extend(3)
    assert tracker.available_slots() == 4
