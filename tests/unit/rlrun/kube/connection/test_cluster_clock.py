"""Clock of the API server, measured by the Date headers of its responses."""

import logging
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun.kube.connection.cluster_clock import ClusterClock

START = datetime(2026, 1, 1, tzinfo=UTC)


class Machines:
    """An API server whose clock is `skew` seconds ahead of the client's."""

    def __init__(self, skew: float = 0.0) -> None:
        self.skew = skew
        self.passed = 0.0
        self.clock = ClusterClock(lambda: START, lambda: 1000.0 + self.passed)

    @property
    def server_time(self) -> datetime:
        return START + timedelta(seconds=self.passed + self.skew)

    def respond(self, before: float = 0.0, after: float = 0.0) -> None:
        """The server writes the response `before` seconds after the request, and it arrives `after` seconds later."""
        sent = self.clock.monotonic()
        self.passed += before
        date = format_datetime(self.server_time, usegmt=True)
        self.passed += after
        self.clock.on_response(date, sent)

    @property
    def error(self) -> float:
        """Seconds by which the clock is ahead of the API server's."""
        return (self.clock() - self.server_time).total_seconds()


def test_before_the_first_response_it_is_the_processes_own_time() -> None:
    assert Machines().clock() == START


@given(
    skew=st.floats(-7200, 7200),
    responses=st.lists(st.tuples(*[st.floats(0, 20)] * 3), min_size=1, max_size=10),
)
def test_after_each_response_it_is_wrong_by_the_time_of_the_shortest_response_at_most(
    skew: float, responses: list[tuple[float, float, float]]
) -> None:
    machines, shortest = Machines(skew), 20.0 * 2
    for pause, before, after in responses:
        machines.passed += pause
        machines.respond(before, after)
        shortest = min(shortest, before + after)
        assert abs(machines.error) <= shortest + 1 + 1e-3


def test_equal_clocks_are_not_moved_by_slow_responses() -> None:
    machines = Machines()
    for _ in range(5):
        machines.respond(before=8, after=11.5)
        assert abs(machines.error) < 1e-3


def test_a_clock_that_is_corrected_is_followed(caplog: pytest.LogCaptureFixture) -> None:
    machines = Machines(90)
    with caplog.at_level(logging.WARNING):
        machines.respond()
        machines.skew = 0.5
        machines.respond()
    assert abs(machines.error) <= 1
    assert ["+90 s" in caplog.messages[0], "-89 s" in caplog.messages[1], len(caplog.messages)] == [True, True, 2]


@pytest.mark.parametrize(
    "date", [None, "", "yesterday", "Thu, 99 Jan 2026 00:00:00 GMT", "Thu, 01 Jan 9999999 0:0:0 GMT"]
)
def test_a_header_that_cannot_be_read_measures_nothing(date: str | None) -> None:
    machines = Machines()
    machines.clock.on_response(date, machines.clock.monotonic())
    assert machines.clock() == START
