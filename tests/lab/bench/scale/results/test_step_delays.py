"""Delays of steps, also of those that an operator shows late or not at all."""

import pytest

from bench.scale.results.step_delays import StepDelays
from bench.scale.testbed.orchestrators import StepSchedule

RUN = "team/first"
PACE = StepSchedule(10.0, 1000.0)
FIRST = PACE.made_at(RUN, 2)
"""Time of the first step: 2 follows `first`. The others follow every 10 s."""


@pytest.fixture
def delays() -> StepDelays:
    return StepDelays(PACE, FIRST + 1)


def test_a_step_counts_from_the_time_at_which_it_was_made(delays: StepDelays) -> None:
    delays.show(RUN, 3, FIRST + 10.5)
    delays.show(RUN, 4, FIRST + 20.25)
    assert delays.until(FIRST + 21) == pytest.approx([0.5, 0.25])


def test_steps_before_the_begin_and_statuses_without_a_new_step_do_not_count(delays: StepDelays) -> None:
    delays.show(RUN, 2, FIRST + 2)
    delays.show(RUN, 3, FIRST + 11)
    delays.show(RUN, 3, FIRST + 15)
    assert delays.until(FIRST + 19) == pytest.approx([1])


def test_each_skipped_step_counts_with_its_own_time(delays: StepDelays) -> None:
    delays.show(RUN, 5, FIRST + 31)
    assert delays.until(FIRST + 32) == pytest.approx([21, 11, 1])


def test_steps_that_no_status_shows_count_with_their_age(delays: StepDelays) -> None:
    delays.show(RUN, 2, FIRST + 2)
    assert delays.until(FIRST + 25) == pytest.approx([15, 5])


def test_the_highest_step_is_that_of_a_status(delays: StepDelays) -> None:
    assert delays.highest == 1
    delays.show(RUN, 4, FIRST + 21)
    assert delays.highest == 4
