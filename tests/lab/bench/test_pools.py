"""Forms of running experiments are compared repetition by repetition."""

import pytest

from bench.cluster_runs import Together
from bench.pools import GIB, TASKS, Measured, results_of
from bench.reward_curves import Step, Trace


def together(runs: int, seconds: float, gib: float, step_seconds: float = 50.0) -> Together:
    return Together(seconds, [Trace([Step(step_seconds, 0.5, 32)], 10.0)] * runs, int(gib * GIB))


def test_rates_memory_and_speed_are_of_the_same_repetition() -> None:
    measured = Measured(TASKS["waiting"], busy=[0.1])
    measured.found = {
        "pool": {0: together(8, 120.0, 4.5)},
        "pool of one": {0: together(1, 90.0, 1.0, 52.0)},
        # The second repetition of the pool failed.
        "alone": {0: together(3, 270.0, 3.0), 1: together(3, 27.0, 3.0)},
        "at once": {},
    }
    alone, at_once, memory, slower = results_of(measured)
    assert alone.ratio == pytest.approx((8 / 120) / (3 / 270))
    assert at_once.ratio is None
    assert memory.ratio == pytest.approx(0.5)
    assert slower.ratio == pytest.approx(52 / 50)


def test_a_form_that_failed_is_a_note() -> None:
    measured = Measured(TASKS["computing"], problems=["pool, repetition 0: RunFailed"])
    assert "pool, repetition 0: RunFailed" in results_of(measured)[0].notes
