"""Comparison of the levels of asynchrony."""

import pytest
from rlrun.api.run import RLRun

from bench import async_levels
from bench.async_levels import COMPARISONS
from bench.reward_curves import Step, Trace
from bench.tasks import WAITING


def run_of(reward: float, each: float, seed: int = 0, startup: float = 20.0, load: float = 0.1, **groups: int) -> Trace:
    steps = [Step(each * (i + 1), reward, 128) for i in range(10)]
    return Trace(steps, startup, seed, {"cores_busy_before": load, "groups": groups})


def test_levels_are_compared_repetition_by_repetition() -> None:
    # The second run at level 0 failed: paired by place, seed 2 would be compared with seed 1.
    traces = {
        0: [run_of(0.5, 6.0, 0), run_of(0.5, 8.0, 2)],
        2: [run_of(0.5, 2.0, 0), run_of(0.6, 1.0, 1), run_of(0.4, 2.0, 2)],
    }
    speed, reward = async_levels.results_of(COMPARISONS["waiting"], traces, ["level 0, seed 1: failed"])
    assert list(speed.repetitions) == pytest.approx([3.0, 4.0])
    assert list(reward.repetitions) == pytest.approx([0.0, -0.1])
    assert speed.ratio == pytest.approx(3.5)


def test_start_up_and_rollouts_drawn_are_counted_beside_the_steps() -> None:
    late = run_of(0.5, 2.0, startup=30.0, load=0.9, trained=160, stale=3, inFlight=2)
    speed, reward = async_levels.results_of(COMPARISONS["waiting"], {0: [run_of(0.5, 6.0)], 2: [late]}, [])
    assert speed.with_startup == pytest.approx((20 + 60) / (30 + 20))
    assert f"1280 rollouts trained on of {1280 + 5 * WAITING.rollouts_per_example} drawn" in speed.notes[0]
    assert list(speed.cores_busy) == list(reward.cores_busy) == [0.1, 0.9]


def test_failed_level_leaves_no_ratio() -> None:
    speed, reward = async_levels.results_of(COMPARISONS["waiting"], {0: [], 2: [run_of(0.5, 1.0)]}, ["level 0"])
    assert (speed.ratio, reward.ratio) == (None, None)
    assert "level 0" in speed.notes


def test_groups_lost_to_age_are_a_share_of_those_that_ended() -> None:
    traces = {
        2: [run_of(0.5, 6.0, trained=150, stale=45, errored=5, inFlight=20)],
        8: [run_of(0.5, 5.0, trained=160, stale=1, inFlight=20)],
    }
    _, _, lost = async_levels.results_of(COMPARISONS["long-turns"], traces, [])
    assert lost.ratio == pytest.approx(1 / 161)
    assert lost.notes == ["maxOffPolicySteps 2: 22.5%", "maxOffPolicySteps 8: 0.6%"]


@pytest.mark.parametrize("name", COMPARISONS)
def test_runs_of_a_comparison_are_valid_and_differ(name: str) -> None:
    comparison = COMPARISONS[name]
    for value, fields in comparison.runs.items():
        spec = RLRun.model_validate(comparison.task.run_object("bench", "bench", 1, **fields)).spec
        assert spec.model_dump(by_alias=True)[comparison.setting] == value
