"""Rows of the benchmark of clients' programs, from durations."""

import pytest

from bench.tinker import results_of


def test_latencies_are_of_both_commands_and_rates_of_the_same_repetition() -> None:
    latencies = [[(0.06, 0.01)] * 18 + [(0.2, 0.01)] * 2, [(0.08, 0.01)] * 20, [(0.07, 0.01)] * 20]
    p50, p95, clients = results_of(latencies, ({0: 900.0, 1: 1000.0}, {0: 300.0, 1: 200.0}), [0.1])
    assert p50.repetitions == pytest.approx([70.0, 90.0, 80.0])
    assert p50.ratio == pytest.approx(80.0)
    assert p95.repetitions == pytest.approx([210.0, 90.0, 80.0])
    assert "optim_step 10 ms p95" in p95.notes[0]
    assert clients.repetitions == [3.0, 5.0]
    assert clients.ratio == 4.0
