"""Comparison of the levels of asynchrony."""

import pytest
from rlrun.api.run import RLRun

from bench import async_levels
from bench.report import at_least
from bench.reward_curves import Step, Trace
from bench.tasks import WAITING


def trace(rewards: list[float], each: float, rollouts: int = 128) -> Trace:
    return Trace([Step(each * (i + 1), reward, rollouts) for i, reward in enumerate(rewards)], 30.0)


def test_levels_are_compared_by_steps_per_hour_and_reward() -> None:
    traces = {0: [trace([0.5] * 10, 6.0)], 2: [trace([0.48] * 10, 2.0)]}
    speed, reward = async_levels.results_of(WAITING, at_least(2.0), traces, [])
    assert speed.ratio == pytest.approx(3.0)
    assert speed.aim is not None
    assert speed.aim.met_by(speed.ratio)
    assert reward.ratio == pytest.approx(-0.02)
    assert reward.aim is not None
    assert reward.aim.met_by(reward.ratio)


def test_failed_level_leaves_no_ratio() -> None:
    speed, reward = async_levels.results_of(WAITING, at_least(2.0), {0: [], 2: [trace([0.5] * 4, 1.0)]}, ["level 0"])
    assert (speed.ratio, reward.ratio) == (None, None)
    assert "level 0" in speed.notes


@pytest.mark.parametrize("level", async_levels.LEVELS)
def test_run_of_a_level_is_valid(level: int) -> None:
    spec = async_levels.LEVELS[level]
    assert RLRun.model_validate(WAITING.run_object("bench", "bench", 1, **spec)).spec.max_async_level == level
