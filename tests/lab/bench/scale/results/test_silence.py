"""Rows of runs whose orchestrators do not answer."""

from bench.scale.results.silence import SilenceRepetition, results_of
from bench.scale.testbed.readings import OperatorUsage


def repetition(**changes: object) -> SilenceRepetition:
    usage = OperatorUsage(seconds=10.0, requests=15.0, writes=0, listings=0, looks=20, cpu_seconds=0.1)
    fields = {
        "runs": 100,
        "others": 2,
        "shown_delays": [30.0, 60.0],
        "quiet": usage,
        "waiting": 0.0,
        "crash_delays": [0.1, 0.9],
        "resident_mib": 150.0,
        "start_seconds": 8.0,
    }
    return SilenceRepetition(**{**fields, **changes})  # type: ignore[arg-type]


def test_all_aims_are_met_by_an_operator_that_goes_on() -> None:
    rows = results_of([repetition()])
    assert [row.ratio for row in rows] == [1.5, 0.9, 60.0, 8.0]
    assert [row.aim.met_by(row.ratio) for row in rows if row.aim] == [True] * 4
    assert rows[0].notes[0].startswith("2.0 looks/s, 0 runs wait for a worker")


def test_an_operator_whose_workers_wait_misses_them() -> None:
    busy = OperatorUsage(seconds=10.0, requests=170.0, writes=0, listings=0, looks=12, cpu_seconds=0.5)
    delays = {"crash_delays": [3.0, 40.0], "shown_delays": [95.0, 200.0], "start_seconds": 37.0}
    rows = results_of([repetition(quiet=busy, waiting=92.0, **delays)])
    assert [row.aim.met_by(row.ratio) for row in rows if row.aim] == [False] * 4


def test_more_runs_may_have_more_requests() -> None:
    aim = results_of([repetition(runs=300)])[0].aim
    assert aim is not None
    assert aim.met_by(6.0)
    assert not aim.met_by(6.1)
