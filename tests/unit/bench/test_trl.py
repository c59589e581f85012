"""Comparison with TRL: ratios, notes, and equal settings on both sides."""

import json
from pathlib import Path

import pytest
from rlrun.api.model import RLModel
from rlrun.api.run import RLRun

from bench import trl
from bench.reward_curves import Step, Trace
from bench.tasks import DEMO, TASKS, Task


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
