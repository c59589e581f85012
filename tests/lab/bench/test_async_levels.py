"""Comparison of the levels of asynchrony."""

import pytest
from rlrun.api.run import RLRun

from bench import async_levels
from bench.async_levels import COMPARISONS
from bench.reward_curves import Step, Trace
from bench.tasks import WAITING


def trace(rewards: list[float], each: float, rollouts: int = 128) -> Trace:
    return Trace([Step(each * (i + 1), reward, rollouts) for i, reward in enumerate(rewards)], 30.0)


def test_levels_are_compared_by_steps_per_hour_and_reward() -> None:
    traces = {0: [trace([0.5] * 10, 6.0)], 2: [trace([0.48] * 10, 2.0)]}
    speed, reward = async_levels.results_of(COMPARISONS["waiting"], traces, [])
    assert speed.ratio == pytest.approx(3.0)
    assert speed.aim is not None
    assert speed.aim.met_by(speed.ratio)
    assert reward.ratio == pytest.approx(-0.02)
    assert reward.aim is not None
    assert reward.aim.met_by(reward.ratio)


def seeded(rewards: list[float], each: float, seed: int, startup: float, load: float = 0.1, **groups: int) -> Trace:
    return Trace(
        trace(rewards, each).steps, startup, {"seed": seed, "cores_busy_before": load} | {"groups": groups or {}}
    )


def test_levels_are_compared_repetition_by_repetition() -> None:
    # The second run at level 0 failed: paired by place, seed 2 would be compared with seed 1.
    traces = {
        0: [seeded([0.5] * 10, 6.0, 0, 20.0), seeded([0.5] * 10, 8.0, 2, 20.0)],
        2: [seeded([0.5] * 10, 2.0, 0, 20.0), seeded([0.6] * 10, 1.0, 1, 20.0), seeded([0.4] * 10, 2.0, 2, 20.0)],
    }
    speed, reward = async_levels.results_of(COMPARISONS["waiting"], traces, ["level 0, seed 1: failed"])
    assert list(speed.repetitions) == pytest.approx([3.0, 4.0])
    assert list(reward.repetitions) == pytest.approx([0.0, -0.1])
    assert speed.ratio == pytest.approx(3.5)


def test_start_up_and_rollouts_drawn_are_counted_beside_the_steps() -> None:
    traces = {
        0: [seeded([0.5] * 10, 6.0, 0, 20.0)],
        2: [seeded([0.5] * 10, 2.0, 0, 30.0, load=0.9, trained=160, stale=3, inFlight=2)],
    }
    speed, reward = async_levels.results_of(COMPARISONS["waiting"], traces, [])
    assert speed.with_startup == pytest.approx((20 + 60) / (30 + 20))
    assert speed.figures["drawn"] == {"0": [1280], "2": [1280 + 5 * WAITING.rollouts_per_example]}
    assert "1280 rollouts trained on of 1320 drawn" in speed.notes[0]
    assert list(speed.cores_busy) == list(reward.cores_busy) == [0.1, 0.9]


def test_failed_level_leaves_no_ratio() -> None:
    speed, reward = async_levels.results_of(COMPARISONS["waiting"], {0: [], 2: [trace([0.5] * 4, 1.0)]}, ["level 0"])
    assert (speed.ratio, reward.ratio) == (None, None)
    assert "level 0" in speed.notes


def test_groups_lost_to_age_are_a_share_of_those_that_ended() -> None:
    traces = {
        2: [seeded([0.5] * 10, 6.0, 0, 20.0, trained=150, stale=45, errored=5, inFlight=20)],
        8: [seeded([0.5] * 10, 5.0, 0, 20.0, trained=160, stale=1, inFlight=20)],
    }
    speed, _, lost = async_levels.results_of(COMPARISONS["long-turns"], traces, [])
    assert speed.ratio == pytest.approx(1.2)
    assert lost.ratio == pytest.approx(1 / 161)
    assert lost.aim is not None
    assert lost.aim.met_by(lost.ratio)
    assert lost.notes == ["maxOffPolicySteps 2: 22.5%", "maxOffPolicySteps 8: 0.6%"]


@pytest.mark.parametrize("name", COMPARISONS)
def test_runs_of_a_comparison_are_valid_and_differ(name: str) -> None:
    comparison = COMPARISONS[name]
    objects = [comparison.task.run_object("bench", "bench", 1, **spec) for spec in comparison.runs.values()]
    assert objects[0] != objects[1]
    for value, run in zip(comparison.values, objects, strict=True):
        spec = RLRun.model_validate(run).spec
        assert spec.model_dump(by_alias=True)[comparison.setting] == value
