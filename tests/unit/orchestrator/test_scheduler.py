from rlrun_orchestrator.cadence import RunSchedule
from rlrun_orchestrator.scheduler import Scheduler, SchedulingLimits, Verdict


def scheduler(groups: int = 4, factor: float = 2.0, level: int = 2, max_steps: int = 100) -> Scheduler:
    return Scheduler(
        SchedulingLimits.from_rollouts(
            batch_size=groups * 8, rollouts_per_example=8, oversampling_factor=factor, max_async_level=level
        ),
        RunSchedule(max_steps),
    )


def dispatch(s: Scheduler) -> list[str]:
    started = [f"g{s.step}-{s.version}-{s.counts().in_flight + i}" for i in range(s.room())]
    for ordinal, group in enumerate(started):
        s.dispatched(group, ordinal)
    return started


def test_groups_in_flight_are_the_oversampled_batch_rounded_up() -> None:
    s = SchedulingLimits.from_rollouts(
        batch_size=24, rollouts_per_example=8, oversampling_factor=1.5, max_async_level=2
    )
    assert s.groups_per_batch == 3
    assert s.max_groups_in_flight == 5


def test_nothing_starts_without_a_policy() -> None:
    assert scheduler().room() == 0


def test_level_zero_starts_one_batch_per_version() -> None:
    s = scheduler(level=0, factor=1.0)
    s.published(0)
    assert s.room() == 4
    for group in dispatch(s):
        s.finished(group, Verdict.usable)
    assert s.room() == 0
    assert len(s.take_batch() or []) == 4
    assert s.room() == 0, "step 1 may only be trained on version 1"
    s.batch_trained()
    s.published(1)
    assert s.room() == 4
    assert s.counts().stale == 0


def test_a_lost_group_is_replaced_on_policy() -> None:
    s = scheduler(level=0, factor=1.0)
    s.published(0)
    first = dispatch(s)[0]
    s.finished(first, Verdict.errored)
    assert s.room() == 1


def test_generation_goes_on_while_the_trainer_works() -> None:
    s = scheduler(level=2)
    s.published(0)
    for group in dispatch(s)[:4]:
        s.finished(group, Verdict.usable)
    assert s.take_batch()
    assert s.room() == 4, "two batches may be under way for steps 1 and 2, one is in flight already"


def test_the_oldest_version_is_trained_first() -> None:
    s = scheduler(groups=1, factor=2.0, level=2)
    s.published(0)
    s.dispatched("old", 0)
    s.published(1)
    s.dispatched("new", 1)
    s.finished("new", Verdict.usable)
    s.finished("old", Verdict.usable)
    assert s.take_batch() == ["old"]


def test_what_a_step_makes_too_old_is_dropped_and_counted() -> None:
    s = scheduler(groups=1, factor=2.0, level=1)
    s.published(0)
    for ordinal, name in enumerate(("a", "b", "c")):
        s.dispatched(name, ordinal)
    s.finished("a", Verdict.usable)
    s.take_batch()
    s.batch_trained()
    assert s.expire() == [], "b and c may still be trained at step 1"
    s.finished("b", Verdict.usable)
    s.take_batch()
    assert s.expire() == ["c"]
    assert not s.finished("c", Verdict.usable), "its result comes too late and is not counted twice"
    assert s.counts().stale == 1


def test_no_group_starts_that_no_remaining_step_can_use() -> None:
    s = scheduler(groups=4, level=2, max_steps=1)
    s.published(0)
    assert s.room() == 4


def test_after_a_rewind_groups_of_the_future_are_gone_and_older_ones_stay() -> None:
    s = scheduler(groups=1, factor=4.0, level=4)
    s.step = 5
    s.published(4)
    s.dispatched("common", 0)
    s.published(5)
    s.dispatched("future", 1)
    s.finished("future", Verdict.usable)
    s.dispatched("taken", 2)
    s.finished("taken", Verdict.usable)
    s.take_batch()
    assert sorted(s.rewind(4)) == ["future", "taken"]
    assert list(s.in_flight) == ["common"]
    assert (s.version, s.step) == (None, 4)


def test_a_batch_is_in_the_order_of_dispatch_and_not_of_arrival() -> None:
    s = scheduler(level=0, factor=1.0)
    s.published(0)
    started = dispatch(s)
    for group in reversed(started):
        s.finished(group, Verdict.usable)
    assert s.take_batch() == started


def test_steps_on_demonstrations_start_no_groups() -> None:
    s = Scheduler(SchedulingLimits(2, 4, 2), RunSchedule(10, supervised_steps=3))
    for step in range(3):
        s.published(step)
        assert s.room() == 0
        s.stepped(step + 1)
    s.published(3)
    assert s.room() == 4
    assert s.dispatched("g", 0) == 3


def test_an_extended_schedule_makes_room_for_more_groups() -> None:
    s = scheduler(groups=4, level=2, max_steps=1)
    s.published(0)
    assert len(dispatch(s)) == 4
    assert s.room() == 0
    s.schedule.extend(3)
    assert s.room() == 4
