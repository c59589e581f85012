"""Which calls are made to a service that may be down."""

import pytest
from rlrun_operator.runtime.circuit_breaker import JITTER, BreakerLimits, BreakerState, CircuitBreaker, Permit

from tests.support.expectations import present

LIMITS = BreakerLimits(failures=3, slow_seconds=2.0, first_pause_seconds=2.0, longest_pause_seconds=15.0)


class Bench:
    """A breaker, a clock that the test moves, and pauses of exactly their length."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.jitter = 0.5
        self.breaker = CircuitBreaker(LIMITS, clock=lambda: self.now, jitter=lambda: self.jitter)

    def begin(self) -> Permit:
        permit = present(self.breaker.acquire())
        return permit

    def fail(self, seconds: float = 0.0) -> None:
        permit = self.begin()
        self.now += seconds
        self.breaker.record_failure(permit)

    def pause(self) -> float:
        """Seconds until a probe is allowed, in steps of half a second."""
        began = self.now
        while self.breaker.acquire() is None:
            self.now += 0.5
        return self.now - began


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_it_is_closed_at_first_and_allows_any_number_of_calls(bench: Bench) -> None:
    assert [bench.breaker.acquire() is not None for _ in range(100)] == [True] * 100
    assert bench.breaker.is_closed


def test_failures_in_a_row_open_it(bench: Bench) -> None:
    bench.fail()
    bench.fail()
    assert bench.breaker.is_closed
    bench.fail()
    assert bench.breaker.state is BreakerState.OPEN
    assert bench.breaker.acquire() is None


def test_a_success_between_failures_keeps_it_closed(bench: Bench) -> None:
    for _ in range(5):
        bench.fail()
        bench.fail()
        bench.breaker.record_success(bench.begin())
    assert bench.breaker.is_closed


def test_one_slow_failure_opens_it(bench: Bench) -> None:
    bench.fail(1.9)
    assert bench.breaker.is_closed
    bench.fail(2.0)
    assert bench.breaker.state is BreakerState.OPEN


def test_after_the_pause_one_call_probes_and_all_others_wait(bench: Bench) -> None:
    bench.fail(2.0)
    bench.now += 1.9
    assert bench.breaker.acquire() is None
    bench.now += 0.2
    assert bench.breaker.acquire() is not None
    assert bench.breaker.state is BreakerState.HALF_OPEN
    bench.now += 1000
    assert [bench.breaker.acquire() for _ in range(10)] == [None] * 10


def test_an_answered_probe_closes_it(bench: Bench) -> None:
    bench.fail(2.0)
    bench.now += 2.0
    bench.breaker.record_success(bench.begin())
    assert bench.breaker.is_closed
    assert bench.breaker.acquire() is not None


def test_an_answered_probe_begins_to_count_anew(bench: Bench) -> None:
    for _ in range(3):
        bench.fail()
    bench.now += 2.0
    bench.breaker.record_success(bench.begin())
    bench.fail()
    bench.fail()
    assert bench.breaker.is_closed


def test_pauses_double_up_to_the_longest_and_begin_anew_after_an_answer(bench: Bench) -> None:
    bench.fail(2.0)
    pauses = []
    for _ in range(5):
        began = bench.now
        while (probe := bench.breaker.acquire()) is None:
            bench.now += 0.5
        pauses.append(bench.now - began)
        bench.breaker.record_failure(probe)
    assert pauses == [2.0, 4.0, 8.0, 15.0, 15.0]
    bench.now += 15.0
    bench.breaker.record_success(bench.begin())
    bench.fail(2.0)
    assert bench.pause() == 2.0


@pytest.mark.parametrize(("jitter", "factor"), [(0.0, 1 - JITTER), (0.5, 1.0), (1.0, 1 + JITTER)])
def test_a_pause_is_shorter_or_longer_by_chance(bench: Bench, jitter: float, factor: float) -> None:
    bench.jitter = jitter
    bench.fail(2.0)
    bench.now += 2.0 * factor - 0.01
    assert bench.breaker.acquire() is None
    bench.now += 0.02
    assert bench.breaker.acquire() is not None


def test_calls_that_began_before_it_opened_change_nothing(bench: Bench) -> None:
    early = [bench.begin() for _ in range(3)]
    bench.fail(2.0)
    bench.breaker.record_success(early[0])
    assert bench.breaker.state is BreakerState.OPEN
    bench.breaker.record_failure(early[1])
    assert bench.pause() == 2.0
    # The pause has led to a probe, which an early call does not end either.
    bench.breaker.record_failure(early[2])
    assert bench.breaker.state is BreakerState.HALF_OPEN


def test_calls_that_began_before_an_outage_do_not_open_it_again_after_it(bench: Bench) -> None:
    early = [bench.begin() for _ in range(5)]
    bench.fail(2.0)
    bench.now += 2.0
    bench.breaker.record_success(bench.begin())
    for permit in early:
        bench.breaker.record_failure(permit)
    assert bench.breaker.is_closed


def test_an_abandoned_probe_lets_the_next_call_probe_at_once(bench: Bench) -> None:
    bench.fail(2.0)
    bench.now += 2.0
    bench.breaker.abandon(bench.begin())
    assert bench.breaker.state is BreakerState.OPEN
    bench.breaker.record_success(bench.begin())
    assert bench.breaker.is_closed


def test_abandoned_calls_are_no_failures(bench: Bench) -> None:
    for _ in range(10):
        permit = bench.begin()
        bench.now += 10
        bench.breaker.abandon(permit)
    assert bench.breaker.is_closed
