"""Arrival at a target, and the traces of both sides."""

from datetime import UTC, datetime, timedelta

import pytest

from bench.reward_curves import Step, Trace, arrival, drawn_rollouts, steps_per_hour
from bench.trl_runs import trace_of as trl_trace

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def steps(rewards: list[float], each: float = 2.0, rollouts: int = 128) -> list[Step]:
    return [Step(each * (i + 1), reward, rollouts) for i, reward in enumerate(rewards)]


def test_arrival_is_the_first_step_whose_moving_mean_reaches_the_target() -> None:
    # One lucky step does not count: 0.9 alone is not an arrival.
    found = arrival(steps([0.4, 0.9, 0.5, 0.6, 0.7, 0.8, 0.9]), 0.7)
    assert found is not None
    assert (found.steps, found.seconds, found.rollouts) == (6, 12.0, 6 * 128)


def test_run_below_the_target_has_no_arrival() -> None:
    assert arrival(steps([0.4, 0.5, 0.6]), 0.7) is None
    assert arrival(steps([0.9, 0.9]), 0.7) is None


def test_steps_per_hour_omit_the_first_step() -> None:
    late = [Step(60.0, 0.5, 8), Step(62.0, 0.5, 8), Step(64.0, 0.5, 8)]
    assert steps_per_hour(late) == pytest.approx(1800)
    assert steps_per_hour(late[:1]) is None


def test_unused_groups_count_as_drawn() -> None:
    groups = {"trained": 224, "stale": 48, "inFlight": 38, "errored": 1, "filtered": 2}
    assert drawn_rollouts(Trace([], 0.0, facts={"groups": groups}), 1792, 8) == (224 + 89) * 8
    assert drawn_rollouts(Trace([], 0.0), 1408, 8) == 1408


def test_status_of_another_time_than_the_metrics_is_not_added_to_them() -> None:
    # An earlier status has 16 groups in progress that the metrics know as trained; a later one has a step more.
    earlier, later = {"trained": 208, "inFlight": 26}, {"trained": 240, "inFlight": 10}
    assert drawn_rollouts(Trace([], 0.0, facts={"groups": earlier}), 224 * 8, 8) == 234 * 8
    assert drawn_rollouts(Trace([], 0.0, facts={"groups": later}), 224 * 8, 8) == 250 * 8
    assert drawn_rollouts(Trace([], 0.0, facts={"groups": {"trained": 200}}), 224 * 8, 8) == 224 * 8


def test_sample_has_every_step() -> None:
    sample = Trace(steps([0.4, 0.5]), 40.0, 1, {"threads": 2}).sample(side="ours")
    assert sample == {
        "side": "ours",
        "seed": 1,
        "startup_seconds": 40.0,
        "seconds": [2.0, 4.0],
        "rewards": [0.4, 0.5],
        "rollouts": [128, 128],
        "threads": 2,
    }


def test_time_of_trl_begins_with_its_first_step() -> None:
    events = [
        {"event": "loaded", "at": 110.0, "versions": {"trl": "1"}, "threads": 1},
        {"event": "began", "at": 112.0},
        {"event": "step", "at": 115.1, "ended": 115.0, "reward": 0.4, "rollouts": 64, "step": 1},
        {"event": "step", "at": 117.1, "ended": 117.0, "reward": 0.5, "rollouts": 64, "step": 2},
    ]
    trace = trl_trace(events, 100.0)
    assert trace.startup_seconds == 12.0
    assert [(s.seconds, s.reward, s.rollouts) for s in trace.steps] == [(3.0, 0.4, 64), (5.0, 0.5, 64)]
    assert trace.facts == {"versions": {"trl": "1"}, "threads": 1}


def metric_line(step: int, seconds: float, **values: float) -> dict[str, object]:
    return {"step": step, "time": (BEGAN + timedelta(seconds=seconds)).isoformat(), **values}


def test_time_of_a_run_begins_with_its_first_step_and_omits_evaluations() -> None:
    from bench.cluster_runs import trace_of

    lines = [
        metric_line(0, 5.0, **{"eval/reverse/avg@1": 0.3}),
        metric_line(
            1, 10.0, **{"progress/step": 1.0, "time/step": 4.0, "reward/mean": 0.4, "mismatch_kl/all/mean": 0.0}
        ),
        metric_line(
            2,
            13.0,
            **{"progress/step": 2.0, "time/step": 3.0, "reward/mean": 0.5, "batch/effective_batch_size": 120.0},
        ),
    ]
    trace = trace_of(lines, BEGAN.timestamp() - 30, 128)
    assert trace.startup_seconds == 36.0
    assert [(s.seconds, s.reward, s.rollouts) for s in trace.steps] == [(4.0, 0.4, 128), (7.0, 0.5, 120)]
    assert trace.facts["mean_seconds"] == {"time/step": 3.5}
    assert trace.facts["mismatch_kl_mean"] == 0.0
