"""Delays of events and steps, also of those that no status shows or that an operator shows late."""

import pytest

from bench.scale.scenarios.delays import EventDelays, StepDelays
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


def test_an_event_counts_until_the_first_status_that_shows_it() -> None:
    delays = EventDelays()
    delays.cause("a", 10.0)
    delays.show("a", 10.5)
    delays.show("a", 13.0)
    assert delays.until(20.0) == [0.5]
    assert delays.missing == 0


def test_an_event_that_is_not_shown_counts_with_its_age() -> None:
    delays = EventDelays()
    delays.cause("a", 10.0)
    delays.cause("b", 12.0)
    delays.show("a", 11.0)
    assert delays.missing == 1
    assert delays.until(20.0) == [1.0, 8.0]


def test_a_status_before_its_event_does_not_count() -> None:
    delays = EventDelays()
    delays.show("a", 9.0)
    delays.cause("a", 10.0)
    assert delays.until(12.0) == [2.0]


def test_time_since_a_moment_is_never_negative() -> None:
    delays = EventDelays()
    for key, shown in (("early", 11.0), ("late", 17.5)):
        delays.cause(key, 10.0)
        delays.show(key, shown)
    delays.cause("never", 10.0)
    assert delays.since(15.0) == {"early": 0.0, "late": 2.5}
