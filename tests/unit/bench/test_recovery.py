"""Time from the loss of a pod to the next step."""

import pytest

from bench.recovery import Recovery, percentile
from bench.recovery import results_of as recoveries


def test_rest_of_a_recovery_excludes_start_and_step() -> None:
    assert Recovery("trainer", ready=5.0, trained=8.0, usual_step=1.0).rest == 2.0
    assert Recovery("trainer", ready=5.0, trained=5.5, usual_step=1.0).rest == 0.0


def test_recovery_results_are_per_role_with_problems() -> None:
    found = [Recovery("trainer", 5.0, 7.0 + i, 1.0) for i in range(3)] + [Recovery("inference", 9.0, 10.5, 1.0)]
    trainer, inference = recoveries(found, ["inference, kill 1: no sign of the next step within 180 s"])
    assert trainer.ratio == 3.0
    assert inference.ratio == 0.5
    assert "180 s" in inference.notes[-1]
    assert len(trainer.notes) == 1


@pytest.mark.parametrize(("percent", "value"), [(50, 2.0), (95, 4.0), (1, 1.0)])
def test_percentile_is_one_of_the_values(percent: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == value
