"""Rows of an API server that answers later."""

from bench.scale.results.latency import LatencyRepetition, results_of
from bench.scale.results.training import Burst, Training
from tests.lab.bench.scale.results.samples import BUSY, IDLE


def test_the_rate_with_the_delay_is_a_share_of_that_without() -> None:
    slow, fast = Burst(80, BUSY), Burst(20, BUSY)
    pods, steps = results_of([LatencyRepetition(100, 0.05, 10, fast, slow, Training(IDLE, [0.1] * 99 + [1.5]))])
    assert (pods.ratio, pods.figures["better"]) == (0.25, "higher")
    assert pods.notes[0].startswith("5.0 and 20.0 pods/s")
    assert "50 ms" in pods.what
    assert steps.aim is not None
    assert (steps.ratio, steps.aim.met_by(steps.ratio)) == (0.1, True)


def test_a_late_status_misses_the_aim() -> None:
    burst = Burst(20, BUSY)
    steps = results_of([LatencyRepetition(100, 0.05, 10, burst, burst, Training(IDLE, [0.1] * 98 + [1.5, 1.5]))])[1]
    assert steps.aim is not None
    assert not steps.aim.met_by(steps.ratio)
