"""Number of steps of a run and what is due after each."""

import pytest
from rlrun_orchestrator.data.schedule import RunSchedule


def test_artifacts_are_due_at_their_intervals_and_after_the_last_step() -> None:
    schedule = RunSchedule(7, checkpoint_interval=3, adapter_interval=2)
    assert [step for step in range(1, 8) if schedule.checkpoint_due(step)] == [3, 6, 7]
    assert [step for step in range(1, 8) if schedule.adapter_due(step)] == [2, 4, 6, 7]


def test_an_interval_of_zero_leaves_only_the_last_step() -> None:
    schedule = RunSchedule(4)
    assert [step for step in range(5) if schedule.checkpoint_due(step)] == [4]
    assert [step for step in range(5) if schedule.adapter_due(step)] == [4]


def test_an_interval_of_one_leaves_out_no_step() -> None:
    schedule = RunSchedule(4, checkpoint_interval=1)
    assert [step for step in range(1, 5) if schedule.checkpoint_due(step)] == [1, 2, 3, 4]


def test_no_step_is_supervised_unless_the_run_says_so() -> None:
    assert RunSchedule(4).supervised_steps == 0


def test_an_extension_moves_the_end_and_tells_every_subscriber() -> None:
    schedule, seen = RunSchedule(4, checkpoint_interval=3), list[int]()
    for _ in range(2):
        schedule.subscribe(lambda: seen.append(schedule.max_steps))
    assert schedule.extend(8)
    assert seen == [8, 8]
    assert [step for step in range(1, 9) if schedule.checkpoint_due(step)] == [3, 6, 8]
    assert not schedule.is_last(7)
    assert schedule.is_last(8)


@pytest.mark.parametrize("steps", [3, 4])
def test_an_extension_without_more_steps_changes_nothing(steps: int) -> None:
    schedule, seen = RunSchedule(4), list[int]()
    schedule.subscribe(lambda: seen.append(1))
    assert not schedule.extend(steps)
    assert (schedule.max_steps, seen) == (4, [])


def test_a_complete_run_is_not_extended() -> None:
    schedule, seen = RunSchedule(4), list[int]()
    schedule.subscribe(lambda: seen.append(1))
    schedule.complete()
    assert not schedule.extend(8)
    assert (schedule.max_steps, seen) == (4, [])


@pytest.mark.parametrize(("supervised", "before", "after"), [(None, 4, 9), (2, 2, 2), (0, 0, 0)])
def test_only_a_fully_supervised_run_supervises_the_steps_added_later(
    supervised: int | None, before: int, after: int
) -> None:
    schedule = RunSchedule(4, supervised_steps=supervised)
    assert schedule.supervised_steps == before
    schedule.extend(9)
    assert schedule.supervised_steps == after
