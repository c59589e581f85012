"""Rows of a burst and its peers."""

from dataclasses import replace

from bench.scale.results.burst import BurstRepetition, results_of
from bench.scale.results.training import Burst, Training
from tests.lab.bench.scale.results.samples import BUSY, IDLE

FOUND = BurstRepetition(
    runs=1000,
    step_seconds=10,
    jobs_seconds=60,
    train_jobs_seconds={1: 250, 4: 80},
    job_sets_seconds=120,
    burst=Burst(100, BUSY),
    quiet=IDLE,
    training=Training(IDLE, [0.1, 0.3]),
    resident_mib=220,
    event_delays=[0.2] * 98 + [0.9, 3.0],
)


def test_a_rate_is_compared_with_that_of_each_peer() -> None:
    rows = {row.name: row for row in results_of([FOUND])}
    assert rows["burst pods against Jobs"].ratio == 0.6
    assert rows["burst pods against TrainJobs of 1"].ratio == 2.5
    assert rows["burst pods against TrainJobs of 4"].ratio == 0.8
    assert rows["burst pods against TrainJobs of 4"].notes[0].startswith("40.0 and 50.0 pods/s, 12.5 TrainJobs/s;")
    assert rows["burst pods against JobSets"].ratio == 1.2
    assert rows["burst event to status"].ratio == 0.9
    assert rows["burst requests of quiet runs"].ratio == 1.0
    assert rows["burst requests of a new run"].ratio == 4.0


def test_slower_runs_miss_the_aims() -> None:
    slow = replace(FOUND, burst=Burst(200, BUSY), event_delays=[0.2, 1.5], resident_mib=231)
    met = {row.name: row.aim.met_by(row.ratio) for row in results_of([slow]) if row.aim}
    assert met == {
        "burst pods against Jobs": False,
        "burst pods against TrainJobs of 1": False,
        "burst pods against TrainJobs of 4": False,
        "burst pods against JobSets": False,
        "burst requests of quiet runs": True,
        "burst step to status": True,
        "burst event to status": False,
        "burst memory": False,
    }


def test_without_kubeflow_trainer_there_are_no_rows_of_it() -> None:
    names = [row.name for row in results_of([replace(FOUND, train_jobs_seconds={}, job_sets_seconds=0)])]
    assert not [name for name in names if "TrainJobs" in name or "JobSets" in name]


def test_a_row_says_its_size_its_direction_and_the_flags() -> None:
    row = results_of([FOUND, FOUND])[0]
    assert row.figures == {"runs": 1000, "better": "higher"}
    assert "300 requests/s" in row.notes[0]
    assert list(row.repetitions) == [0.6, 0.6]
    assert row.samples[0]["event_delays"] == {"events": 100, "p50": 0.2, "p99": 0.9}
