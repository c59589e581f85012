"""One owner of the state of every group."""

import random

import pytest
from rlrun.protocol.orchestrator import GroupCounts
from rlrun.protocol.policy import PolicyRef
from rlrun_orchestrator.data.example_buffer import Example
from rlrun_orchestrator.data.example_sampler import SampledExample
from rlrun_orchestrator.data.groups import Group, GroupState
from rlrun_orchestrator.data.schedule import RunSchedule
from rlrun_orchestrator.data.sent_batch import SentBatch
from rlrun_orchestrator.rollouts import group_tracker
from rlrun_orchestrator.rollouts.group_scheduler import SchedulingLimits
from rlrun_orchestrator.rollouts.group_tracker import GroupTracker

from tests.support.ended_groups import finish


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


def names(groups: list[Group] | None) -> list[str] | None:
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
    assert tracker.outstanding() == [kept.sampled]


def test_long_groups_are_kept_beyond_the_level_until_their_oldest_token_is_too_old() -> None:
    tracker = make_tracker(groups=1, level=2, oldest=4)
    tracker.publish(policy(0))
    slow = tracker.start("slow", example(0))
    for step in range(1, 6):
        assert tracker.drop_stale() == []
        tracker.start(f"g{step}", example(step))
        finish(tracker, f"g{step}")
        assert tracker.take_batch() is not None
        tracker.complete_batch()
        tracker.publish(policy(step))
    assert tracker.step == 5
    assert tracker.drop_stale() == [slow]


def test_a_usable_group_is_ready_then_in_the_batch_and_then_trained() -> None:
    tracker = make_tracker(groups=1)
    tracker.publish(policy(0))
    tracker.start("g", example(5))
    group = finish(tracker, "g")
    assert group.state is GroupState.ready
    assert tracker.take_batch() == [group]
    assert group.state is GroupState.in_batch
    assert tracker.outstanding() == [example(5)]
    tracker.complete_batch()
    assert (group.state, tracker.outstanding()) == (GroupState.trained, [])
    assert tracker.counts() == GroupCounts(trained=1)


@pytest.mark.parametrize("state", [GroupState.filtered, GroupState.errored])
def test_any_other_group_ends_and_leaves_its_slot(state: GroupState) -> None:
    tracker = make_tracker(level=0, factor=1)
    tracker.publish(policy(0))
    first = start_all(tracker)[0]
    group = finish(tracker, first, state)
    assert tracker.available_slots() == 1
    assert getattr(tracker.counts(), state) == 1
    assert not tracker.finish(group, GroupState.ready), "a result that comes twice counts once"


def test_level_zero_starts_one_batch_per_version() -> None:
    tracker = make_tracker(level=0, factor=1)
    tracker.publish(policy(0))
    for group in start_all(tracker):
        finish(tracker, group)
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
        finish(tracker, group)
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
        finish(tracker, group)
    assert names(tracker.take_batch()) == ["old"]


def test_a_batch_is_in_the_order_of_the_ordinals_and_not_of_arrival() -> None:
    tracker = make_tracker(level=0, factor=1)
    tracker.publish(policy(0))
    started = start_all(tracker)
    for group in reversed(started):
        finish(tracker, group)
    assert names(tracker.take_batch()) == started


def make_tracker_of_fours(groups: int, factor: int = 2, level: int = 2) -> GroupTracker:
    """A tracker whose groups have four rollouts."""
    limits = make_tracker(groups, factor, level).limits
    return GroupTracker(limits, RunSchedule(100), rollouts_per_group=4)


def test_a_batch_is_filled_by_valid_rollouts() -> None:
    """Two groups of four rollouts make a batch. What failed is replaced by further groups."""
    tracker = make_tracker_of_fours(groups=2)
    tracker.publish(policy(0))
    started = start_all(tracker)
    for group, valid in zip(started, (2, 3, 4, 4), strict=True):
        finish(tracker, group, valid=valid, size=4)
    assert names(tracker.take_batch()) == started[:3], "2 + 3 valid rollouts are not a batch of 8"
    tracker.complete_batch()
    assert tracker.take_batch() is None
    assert tracker.counts() == GroupCounts(trained=3, in_flight=1)


def test_on_policy_the_groups_of_a_batch_do_not_depend_on_the_order_in_which_they_finish() -> None:
    valid = [3, 4, 2, 4, 1, 3, 4, 4, 4]
    for seed in range(50):
        order = random.Random(seed)
        tracker = make_tracker_of_fours(groups=4, factor=1, level=0)
        tracker.publish(policy(0))
        flying, first = start_all(tracker), 4
        while (batch := tracker.take_batch()) is None:
            group = flying.pop(order.randrange(len(flying)))
            finish(tracker, group, valid=valid[int(group[1:])], size=4)
            more = start_all(tracker, first)
            flying, first = flying + more, first + len(more)
        assert names(batch) == [f"g{number}" for number in range(6)], "3 + 4 + 2 + 4 + 1 + 3 rollouts are at least 16"
        assert not flying


def test_missing_rollouts_are_waited_for_while_groups_that_bring_them_are_in_flight() -> None:
    tracker = make_tracker_of_fours(groups=2, factor=1, level=0)
    tracker.publish(policy(0))
    first, second = start_all(tracker)
    finish(tracker, first, valid=2, size=4)
    assert tracker.available_slots() == 1, "2 + 4 rollouts would not fill a batch of 8"
    (third,) = start_all(tracker, 2)
    assert tracker.available_slots() == 0
    finish(tracker, second, valid=4, size=4)
    assert tracker.take_batch() is None
    assert not tracker.waits_for_policy
    finish(tracker, third, valid=2, size=4)
    assert names(tracker.take_batch()) == [first, second, third]
    assert tracker.waits_for_policy


def test_a_batch_without_a_rollout_to_train_on_is_dropped_and_counted_as_filtered() -> None:
    tracker = make_tracker(groups=2)
    tracker.publish(policy(0))
    started = start_all(tracker)
    for group in started[:3]:
        finish(tracker, group, left_out=group != started[2])
    dropped = tracker.drop_empty_batch()
    assert names(dropped) == started[:2]
    assert {(group.state, group.cause) for group in dropped} == {(GroupState.filtered, "zero_advantage")}
    assert (tracker.step, tracker.counts().filtered, tracker.take_batch()) == (0, 2, None)
    assert tracker.drop_empty_batch() == [], "the third alone is no batch"
    finish(tracker, started[3])
    assert tracker.drop_empty_batch() == []
    assert names(tracker.take_batch()) == started[2:]
    assert tracker.drop_empty_batch() == []


def test_an_example_is_in_a_batch_at_most_twice_while_others_are_ready() -> None:
    tracker = make_tracker(groups=3, factor=3)
    tracker.publish(policy(0))
    for ordinal, index in enumerate((7, 7, 7, 8, 7)):
        tracker.start(f"g{ordinal}", SampledExample(ordinal, Example("words", index)))
        finish(tracker, f"g{ordinal}")
    assert names(tracker.take_batch()) == ["g0", "g1", "g3"]
    tracker.complete_batch()
    tracker.start("g5", SampledExample(5, Example("words", 7)))
    finish(tracker, "g5")
    assert names(tracker.take_batch()) == ["g2", "g4", "g5"], "without others a batch is complete all the same"


def test_groups_made_stale_by_a_step_are_dropped_and_counted_once() -> None:
    tracker = make_tracker(groups=1, level=1)
    tracker.publish(policy(0))
    for ordinal, name in enumerate("abc"):
        tracker.start(name, example(ordinal))
    finish(tracker, "a")
    tracker.take_batch()
    tracker.complete_batch()
    assert tracker.drop_stale() == [], "b and c may still be trained at step 1"
    finish(tracker, "b")
    tracker.take_batch()
    (dropped,) = tracker.drop_stale()
    assert (dropped.id, dropped.state) == ("c", GroupState.stale)
    assert not tracker.finish(dropped, GroupState.ready)
    assert tracker.counts().stale == 1


def test_a_result_that_comes_too_late_is_stale() -> None:
    tracker = make_tracker(groups=1, level=0, factor=1)
    tracker.publish(policy(0))
    tracker.start("g", example(0))
    tracker.advance(1)
    assert finish(tracker, "g").state is GroupState.stale
    assert (tracker.counts().stale, tracker.outstanding()) == (1, [])


def test_after_a_rewind_groups_of_later_policies_and_the_batch_are_dropped() -> None:
    tracker = make_tracker(groups=1, factor=4, level=4)
    tracker.advance(5)
    tracker.publish(policy(4))
    tracker.start("common", example(0))
    tracker.publish(policy(5))
    for ordinal, name in enumerate(("future", "taken"), start=1):
        tracker.start(name, example(ordinal))
    finish(tracker, "taken")
    assert names(tracker.take_batch()) == ["taken"]
    assert sorted(names(tracker.rewind(4)) or []) == ["future", "taken"]
    assert tracker.outstanding() == [example(0)]
    assert (tracker.policy, tracker.step, tracker.counts().stale) == (None, 4, 2)


def test_a_returned_batch_is_ready_again_without_the_examples_of_the_other_batch() -> None:
    tracker = make_tracker(groups=2, level=2)
    tracker.publish(policy(0))
    for group in start_all(tracker):
        finish(tracker, group)
    assert names(tracker.take_batch()) == ["g0", "g1"]
    trained = SentBatch("x", step=0, ordinals=[1, 7], groups=2, tokens=9, reward=0.5, values={})
    assert names(tracker.return_batch(1, trained)) == ["g1"]
    assert names(tracker.take_batch()) == ["g0", "g2"], "of the other one nothing is trained twice"
    counts = tracker.counts()
    assert (counts.trained, counts.stale) == (2, 0), "the counts before had nothing in flight"


def test_a_batch_that_is_returned_too_late_is_dropped() -> None:
    tracker = make_tracker(groups=1, level=0, factor=1)
    tracker.publish(policy(0))
    for group in start_all(tracker):
        finish(tracker, group)
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
        finish(tracker, group)
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


def test_a_group_takes_the_slots_of_the_rollouts_that_it_will_bring() -> None:
    limits = SchedulingLimits(4, 8, 2, 2)
    tracker = GroupTracker(limits, RunSchedule(100), rollouts_per_group=4)
    tracker.publish(policy(0))
    ids = start_all(tracker)
    assert len(ids) == 8, "nothing is known of the environment yet"
    finish(tracker, ids[0], GroupState.ready, 8)
    assert tracker.slots_of("words") == 2.0
    assert tracker.slots_of("sums") == 1.0
    assert tracker.available_slots() == 0, "seven groups with 56 rollouts run, and 32 may"
    for number in range(1, 8):
        finish(tracker, ids[number], GroupState.filtered, 8)
    for number in range(8, 12):
        assert tracker.available_slots() > 0
        tracker.start(f"g{number}", example(number))
    assert tracker.available_slots() == 0, "four groups have the rollouts that oversampling allows"
    finish(tracker, "g8", GroupState.errored, 4)
    assert tracker.slots_of("words") == 2.0, "a group whose episodes failed says nothing"
    finish(tracker, "g9", GroupState.filtered, 2)
    assert 1.0 < tracker.slots_of("words") < 2.0


def token_tracker(tokens: int) -> GroupTracker:
    """A tracker of batches of tokens, which expects four groups a batch at first. A rollout has five tokens."""
    tracker = GroupTracker(SchedulingLimits(4, 8, 2, 2, tokens), RunSchedule(100), rollouts_per_group=2)
    tracker.publish(policy(0))
    return tracker


def test_a_batch_of_tokens_is_whole_groups_until_they_have_enough_tokens() -> None:
    tracker = token_tracker(40)
    groups = start_all(tracker)
    assert len(groups) == 8, "as many as with four groups a batch, of which none has ended yet"
    finish(tracker, groups[0], valid=6)
    assert tracker.take_batch() is None
    finish(tracker, groups[1], valid=1, size=2)
    assert tracker.take_batch() is None, "35 tokens: those of a failed rollout do not count"
    finish(tracker, groups[2], valid=2)
    finish(tracker, groups[3], valid=2)
    assert names(tracker.take_batch()) == groups[:3]
    assert tracker.count(GroupState.ready) == 1


@pytest.mark.parametrize(
    ("valid", "taken"),
    [
        pytest.param((2, 2, 2, 2), 3, id="six sequences complete a batch"),
        pytest.param((4, 1, 4), 2, id="a group that does not fit waits for the next batch"),
        pytest.param((7, 1), 1, id="a single group that is too large is a batch by itself"),
    ],
)
def test_a_batch_of_tokens_is_complete_before_it_has_too_many_sequences(
    valid: tuple[int, ...], taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_tracker, "MAX_SAMPLES", 6)
    tracker = token_tracker(1000)
    groups = start_all(tracker)[: len(valid)]
    for name, rollouts in zip(groups, valid, strict=True):
        finish(tracker, name, valid=rollouts)
    assert names(tracker.take_batch()) == groups[:taken]
    assert tracker.count(GroupState.ready) == len(valid) - taken


def test_as_many_groups_start_as_batches_of_tokens_are_expected_to_need() -> None:
    tracker = token_tracker(40)
    [first, second, *others] = start_all(tracker)
    finish(tracker, first, valid=4)
    finish(tracker, second, valid=4)
    assert (tracker.limits.groups_per_batch, tracker.limits.max_groups_in_flight) == (2, 4)
    assert tracker.available_slots() == 0
    assert not tracker.waits_for_policy, "the batch is complete"
    for name in others:
        finish(tracker, name, GroupState.errored)
    assert tracker.available_slots() == 4, "six for three batches, of which two are ready"


def test_a_group_of_an_environment_with_short_rollouts_takes_part_of_a_slot() -> None:
    tracker = token_tracker(40)
    for ordinal, (environment, valid) in enumerate([("long", 6), ("short", 2)]):
        tracker.start(f"g{ordinal}", SampledExample(ordinal, Example(environment, 0)))
        finish(tracker, f"g{ordinal}", valid=valid)
    assert [tracker.slots_of(name) for name in ("long", "short", "unknown")] == [1.5, 0.5, 1.0]
    assert tracker.limits.groups_per_batch == 2
