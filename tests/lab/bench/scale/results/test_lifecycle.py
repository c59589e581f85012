"""Rows of many runs from their repetitions."""

from bench.scale.results.lifecycle import LifecycleRepetition, results_of
from bench.scale.results.training import Burst, OperatorStart, Training
from bench.scale.testbed.api_server_work import ApiServerWork
from bench.scale.testbed.readings import OperatorUsage


def repetition(seconds: float, requests: float, delays: list[float]) -> LifecycleRepetition:
    quiet = OperatorUsage(seconds=60, requests=requests, writes=0, listings=0, looks=1, cpu_seconds=3)
    return LifecycleRepetition(
        runs=100,
        finished=900,
        step_seconds=10,
        jobs_seconds=8,
        alike_seconds=16,
        jobs_work=ApiServerWork(10, {"POST jobs": 400, "POST pods": 400}),
        burst=Burst(
            seconds, OperatorUsage(seconds=seconds, requests=4000, writes=1, listings=1, looks=200, cpu_seconds=17)
        ),
        burst_work=ApiServerWork(30, {"APPLY services": 400, "POST pods": 2000}),
        quiet=quiet,
        training=Training(quiet, delays),
        resident_mib=220,
        cache_kib_per_run=17,
        start=OperatorStart(9, 12, quiet, 2.2e8),
        waiting=quiet,
    )


def test_the_rows_are_medians_of_all_repetitions() -> None:
    found = [repetition(40, 60, [0.1] * 99 + [5.0]), repetition(20, 180, [0.1]), repetition(10, 90, [2.0])]
    rows = {row.name: row for row in results_of(found)}
    pods = rows["pods of runs"]
    assert (pods.ratio, list(pods.repetitions)) == (0.4, [0.2, 0.4, 0.8])
    assert pods.aim is not None
    assert not pods.aim.met_by(pods.ratio)
    assert list(rows["pods of runs against Jobs of their templates"].repetitions) == [0.4, 0.8, 1.6]
    assert rows["requests of a new run"].ratio == 40
    assert rows["requests of quiet runs"].ratio == 1.5
    work = rows["API server's requests of a new run"]
    assert work.ratio == 3
    assert "24 and 8 requests; 300 and 100 ms CPU" in work.notes[0]
    assert list(rows["step to status"].repetitions) == [0.1, 0.1, 2.0]
    assert rows["memory"].ratio == 220
    assert rows["takeover"].ratio == 9
    assert rows["start of an operator"].ratio == 12


def test_a_sample_has_percentiles_and_not_each_delay() -> None:
    (row, *_) = results_of([repetition(40, 60, [0.1, 0.2, 0.3])])
    training = row.samples[0]["training"]
    assert (training["steps"], training["p50"]) == (3, 0.2)
    assert "delays" not in training
