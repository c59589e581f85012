"""Results computed from traces: ratios, targets and notes."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from rlrun.api.model import RLModel
from rlrun.api.run import RLRun

from bench import async_levels, trainer, trl
from bench.report import Result, at_least, measured, record
from bench.reward_curves import Step, Trace
from bench.tasks import DEMO, MIDDLE, TASKS, WAITING, Task


def trace(rewards: list[float], each: float, rollouts: int = 128) -> Trace:
    return Trace([Step(each * (i + 1), reward, rollouts) for i, reward in enumerate(rewards)], 30.0)


FAST = [0.4, 0.7, 0.8, 0.9]
SLOW = [0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


def test_ratio_uses_medians_without_start_up() -> None:
    ours = [trace(FAST, 1.0), trace(FAST, 3.0)]
    theirs = [trace(SLOW, 2.0), trace(SLOW, 2.0)]
    speed, samples = trl.results_of(DEMO, ours, theirs, [])
    # Ours arrive with step 4 (0.8 on average over 2..4) after 4 and 12 s, TRL's with step 5 after 10 s.
    assert speed.ratio == pytest.approx(10 / 8)
    assert samples.ratio == pytest.approx(4 / 5)
    assert len(speed.samples) == 4
    assert {"ours 4 s (4 steps, 512 rollouts) and 12 s (4 steps, 512 rollouts)"} <= {
        note.partition(", TRL")[0] for note in speed.notes
    }


def test_side_that_misses_the_target_leaves_no_ratio_and_a_note() -> None:
    speed, samples = trl.results_of(DEMO, [trace(FAST, 1.0)], [trace([0.4] * 40, 1.0)], ["trl, seed 1: ended"])
    assert speed.ratio is None
    assert samples.ratio is None
    assert "trl: 1 of 1 runs did not reach 0.7" in speed.notes
    assert "trl, seed 1: ended" in speed.notes
    assert trl.results_of(DEMO, [], [trace(SLOW, 1.0)], [])[0].ratio is None


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


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_run_and_model_of_a_task_are_valid(task: Task) -> None:
    run = RLRun.model_validate(task.run_object("bench", "bench", 1))
    model = RLModel.model_validate(task.model.manifest())
    assert run.spec.model == model.spec.id
    assert run.spec.sampling.max_tokens > int(task.env_args["max_length"])
    assert 2 * int(task.env_args["max_length"]) + 2 <= model.spec.seq_len
    assert (task.folder / "pyproject.toml").exists()


@pytest.mark.parametrize("level", async_levels.LEVELS)
def test_run_of_a_level_is_valid(level: int) -> None:
    spec = async_levels.LEVELS[level]
    assert RLRun.model_validate(WAITING.run_object("bench", "bench", 1, **spec)).spec.max_async_level == level


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_both_sides_get_the_same_settings(task: Task, tmp_path: Path) -> None:
    run = RLRun.model_validate(task.run_object("bench", "bench", 7)).spec
    theirs = json.loads(json.dumps(task.trl_settings(tmp_path, 7, 2)))
    assert theirs["batch_size"] == run.batch_size
    assert theirs["rollouts_per_example"] == run.rollouts_per_example
    assert theirs["learning_rate"] == run.learning_rate
    assert theirs["lora_alpha"] == run.lora_alpha
    assert theirs["temperature"] == run.sampling.temperature
    assert theirs["max_tokens"] == run.sampling.max_tokens
    assert theirs["env_args"] == run.env[0].args
    assert theirs["seed"] == run.seed == 7
    lora = RLModel.model_validate(task.model.manifest()).spec.lora
    assert (theirs["lora_rank"], theirs["target_modules"]) == (lora.rank, lora.target_modules)


def test_middle_model_has_its_own_source_and_more_memory() -> None:
    spec = RLModel.model_validate(MIDDLE.manifest()).spec
    assert spec.source.endswith("rlrun/uneven-text-28m")
    assert spec.inference.extra_args[-1] == str(2**28)


def test_result_survives_serialization_from_the_image() -> None:
    result = Result("28m, packed", "tokens/s", 2.5, at_least(1.0), samples=[{"way": "plain"}], notes=["a"])
    assert trainer.parsed(json.loads(json.dumps(asdict(result)))) == Result(
        "28m, packed", "tokens/s", 2.5, at_least(1.0), samples=[{"way": "plain"}], notes=["a"]
    )


def test_missing_gpu_does_not_replace_an_earlier_measurement(tmp_path: Path) -> None:
    record("trainer", Result("MFU, 16k", "MFU", 12.0, at_least(10.9), "%"), tmp_path)
    assert measured("trainer", "MFU, 16k", tmp_path)
    handed: list[Result] = []
    trainer.keep(handed.append, Result("MFU, 16k", "MFU", None, at_least(10.9), "%"), tmp_path)
    assert handed == []
    trainer.keep(handed.append, Result("MFU, 65k", "MFU", None, at_least(25.2), "%"), tmp_path)
    trainer.keep(handed.append, Result("MFU, 16k", "MFU", 13.0, at_least(10.9), "%"), tmp_path)
    assert [r.ratio for r in handed] == [None, 13.0]
