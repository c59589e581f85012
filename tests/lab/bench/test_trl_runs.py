"""Choice of the fastest options of TRL."""

import math
from typing import Any

import pytest

from bench import trl_runs
from bench.reward_curves import Step, Trace
from bench.tasks import WAITING
from bench.trl_runs import CalibrationFailed, TrlFailed, TrlOptions, TrlPace, TrlTooSlow, choose, pace_of

IDLE = 0.1
DEADLINE = 240.0


def trace(each: float, steps: int = 4, first: float = 60.0, timed_out: bool = False) -> Trace:
    """A first step that is slow for other reasons, and equal ones after it."""
    return Trace([Step(first + i * each, 0.5, 8) for i in range(steps)], 10.0, {"timed_out": timed_out})


def calibrated(monkeypatch: pytest.MonkeyPatch, traces: dict[TrlOptions, Trace | TrlFailed]) -> trl_runs.Calibration:
    def run(task: Any, _: int, options: TrlOptions, *, target: float, **__: Any) -> Trace:
        assert not task.waits
        assert target == math.inf
        found = traces[options]
        if isinstance(found, TrlFailed):
            raise found
        return found

    monkeypatch.setattr(trl_runs, "run", run)
    return trl_runs.fastest(WAITING, say=lambda _: None, load=lambda: IDLE)


def test_fastest_options_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    found = calibrated(
        monkeypatch, {TrlOptions(1): trace(3.0), TrlOptions(2): trace(2.0), TrlOptions(2, continuous=True): trace(9.0)}
    )
    assert found.best == TrlOptions(2)
    assert found.to_record() == {
        "static batches, 1 torch thread": 3.0,
        "static batches, 2 torch threads": 2.0,
        "continuous batching, 2 torch threads": 9.0,
    }
    assert found.cores_busy == [IDLE] * 3


def test_options_that_complete_one_step_are_slower_only_if_the_time_that_the_second_took_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Ended by the deadline of 240 s in the second step: 10 s of start-up, 60 s for the first, so more than 170 s.
    cut = trace(1.0, steps=1, timed_out=True)
    found = calibrated(
        monkeypatch, {TrlOptions(1): trace(30.0), TrlOptions(2): trace(27.0), TrlOptions(2, continuous=True): cut}
    )
    assert found.best == TrlOptions(2)
    assert found.to_record()["continuous batching, 2 torch threads"] == "> 170"
    with pytest.raises(CalibrationFailed, match=r"continuous batching, 2 torch threads.*more than 170 s.*--threads"):
        calibrated(
            monkeypatch, {TrlOptions(1): trace(300.0), TrlOptions(2): trace(200.0), TrlOptions(2, continuous=True): cut}
        )


def test_options_without_a_step_are_slower_if_the_first_step_took_longer_than_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = TrlTooSlow("TRL made no step within 240 s", waited=225.0)
    found = calibrated(
        monkeypatch, {TrlOptions(1): trace(30.0), TrlOptions(2): trace(27.0), TrlOptions(2, continuous=True): slow}
    )
    assert found.best == TrlOptions(2)
    assert found.to_record()["continuous batching, 2 torch threads"] == "> 225"


def test_failed_options_are_an_error_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CalibrationFailed, match=r"static batches, 2 torch threads: TRL ended with code 1"):
        calibrated(monkeypatch, {TrlOptions(1): trace(3.0), TrlOptions(2): TrlFailed("TRL ended with code 1")})


def test_calibration_without_a_measured_option_fails() -> None:
    with pytest.raises(CalibrationFailed, match="no options of TRL completed two steps"):
        choose([TrlPace(TrlOptions(1), at_least=170.0), TrlPace(TrlOptions(2), at_least=150.0)])


def test_pace_does_not_count_the_first_step() -> None:
    assert pace_of(TrlOptions(), trace(2.0), DEADLINE) == TrlPace(TrlOptions(), seconds=2.0)
    assert pace_of(TrlOptions(), trace(2.0, steps=2), DEADLINE) == TrlPace(TrlOptions(), seconds=2.0)


def test_single_step_of_a_run_that_ended_by_itself_is_not_a_pace() -> None:
    with pytest.raises(CalibrationFailed, match="ended by itself after 1 step"):
        pace_of(TrlOptions(), trace(2.0, steps=1), DEADLINE)
