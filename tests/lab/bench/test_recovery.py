"""Time from the loss of a pod to the next step."""

from datetime import UTC, datetime, timedelta

import pytest

from bench.recovery import Recovery, age_of
from bench.recovery import results_of as recoveries


def test_rest_of_a_recovery_excludes_start_and_step() -> None:
    assert Recovery("trainer", ready=5.0, trained=8.0, usual_step=1.0).rest == 2.0
    assert Recovery("trainer", ready=5.0, trained=5.5, usual_step=1.0).rest == 0.0


def test_whole_time_is_the_number_of_a_role_and_own_part_a_second_row() -> None:
    found = [Recovery("trainer", 5.0, 7.0 + i, 1.0) for i in range(3)] + [Recovery("inference", 9.0, 10.5, 1.0)]
    problems = ["inference, kill 1: no sign of the next step within 180 s"]
    trainer, own, inference, _ = recoveries(found, problems, [0.1])
    assert (trainer.name, trainer.ratio, trainer.unit, trainer.aim) == ("trainer", 8.0, "s p50", None)
    assert (own.name, own.ratio, own.unit) == ("trainer, own part", 3.0, "s max of 3")
    assert list(trainer.repetitions) == [7.0, 8.0, 9.0]
    assert "8.0 s (p50), 9.0 s (max of 3)" in trainer.notes[0]
    assert inference.ratio == 10.5
    assert "180 s" in inference.notes[-1]
    assert len(trainer.notes) == 1
    assert [list(result.cores_busy) for result in (trainer, own)] == [[0.1]] * 2


def test_age_of_pods_is_that_of_the_newest() -> None:
    now = datetime.now(UTC)
    stamps = [f"{now - timedelta(seconds=age):%Y-%m-%dT%H:%M:%SZ}" for age in (90, 30)]
    pods = [{"metadata": {"creationTimestamp": stamp}} for stamp in stamps]
    assert 29 < age_of(pods) < 60
    assert age_of([]) < 1, "a pod that is gone has its successor to wait for"


@pytest.mark.parametrize(("kills", "unit", "value"), [(19, "s max of 19", 19.0), (20, "s p95", 19.0)])
def test_percentile_needs_twenty_kills(kills: int, unit: str, value: float) -> None:
    _, own = recoveries([Recovery("trainer", 5.0, 7.0 + i, 1.0) for i in range(kills)], [])
    assert (own.unit, own.ratio) == (unit, value)
