"""Gain of runs with and without learning."""

import pytest
from rlrun.api.run import RLRun

from bench import control
from bench.reward_curves import Step, Trace
from bench.tasks import DEMO


def run_of(first: float, last: float, steps: int = 30, load: float = 0.1) -> Trace:
    rewards = [first] * (steps // 2) + [last] * (steps - steps // 2)
    return Trace([Step(i + 1.0, r, 128) for i, r in enumerate(rewards)], 20.0, {"cores_busy_before": load})


def test_one_control_that_gains_is_enough_to_fail() -> None:
    traces = {"control": [run_of(0.4, 0.4), run_of(0.4, 0.41), run_of(0.4, 0.7)], "learning": [run_of(0.4, 0.8)] * 3}
    without, learned = control.results_of(traces, [])
    assert without.ratio == pytest.approx(0.3)
    assert without.aim is not None
    assert not without.aim.met_by(without.ratio)
    assert learned.aim is not None
    assert learned.aim.met_by(learned.ratio)


def test_one_run_that_does_not_learn_is_enough_to_fail() -> None:
    traces = {"control": [run_of(0.4, 0.4)], "learning": [run_of(0.4, 0.8), run_of(0.4, 0.45, load=0.6)]}
    without, learned = control.results_of(traces, ["control, seed 1: failed"])
    assert learned.ratio == pytest.approx(0.05)
    assert learned.aim is not None
    assert not learned.aim.met_by(learned.ratio)
    assert without.notes == ["control, seed 1: failed"]
    assert list(without.cores_busy) == [0.1, 0.1, 0.6]


def test_short_run_has_no_gain() -> None:
    assert control.gain(run_of(0.4, 0.8, steps=9)) is None
    without, _ = control.results_of({"control": [run_of(0.4, 0.8, steps=9)], "learning": []}, [])
    assert without.ratio is None


@pytest.mark.parametrize("way", control.WAYS)
def test_run_and_control_have_valid_specs(way: str) -> None:
    spec = RLRun.model_validate(DEMO.run_object("r", "bench", 0, **control.WAYS[way])).spec
    assert 0 < spec.learning_rate <= (1e-20 if way == "control" else 1)
