"""Comparison with TRL: ratios, notes, and equal settings on both sides."""

import json
from pathlib import Path

import pytest
from rlrun.api.model import RLModel
from rlrun.api.run import RLRun

from bench import trl, trl_runs
from bench.reward_curves import Step, Trace
from bench.tasks import DEMO, TASKS, Task


def trace(rewards: list[float], each: float, rollouts: int = 128) -> Trace:
    return Trace([Step(each * (i + 1), reward, rollouts) for i, reward in enumerate(rewards)], 30.0)


FAST = [0.4, 0.7, 0.8, 0.9]
SLOW = [0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


def run_of(
    rewards: list[float], each: float, seed: int, startup: float = 30.0, load: float = 0.1, **groups: int
) -> Trace:
    facts = {"seed": seed, "cores_busy_before": load} | ({"groups": groups} if groups else {})
    return Trace(trace(rewards, each).steps, startup, facts)


def test_number_is_the_median_of_the_ratios_of_repetitions() -> None:
    # Ours arrive with step 4 (0.8 on average over 2..4), TRL's with step 5.
    ours = [run_of(FAST, each, seed) for seed, each in enumerate((1.0, 2.0, 4.0))]
    theirs = [run_of(SLOW, each, seed) for seed, each in enumerate((2.0, 2.0, 2.0))]
    speed, samples, _ = trl.results_of(DEMO, ours, theirs, [])
    assert list(speed.repetitions) == pytest.approx([10 / 4, 10 / 8, 10 / 16])
    assert speed.ratio == pytest.approx(10 / 8)
    assert samples.ratio == pytest.approx(4 / 5)
    assert len(speed.samples) == 6
    assert speed.notes[0].startswith("ours 4 s (4 steps, 512 rollouts trained on of 512 drawn) and 8 s (4 steps")


def test_start_up_of_both_sides_is_counted_in_the_second_number() -> None:
    ours, theirs = [run_of(FAST, 1.0, 0, startup=36.0)], [run_of(SLOW, 2.0, 0, startup=10.0)]
    speed, samples, _ = trl.results_of(DEMO, ours, theirs, [])
    assert speed.ratio == pytest.approx(10 / 4)
    assert speed.with_startup == pytest.approx((10 + 10) / (36 + 4))
    assert samples.with_startup is None


def test_repetitions_are_paired_by_seed_if_one_run_failed() -> None:
    # Paired by place, 10 / 4 would be compared with the wrong run.
    ours = [run_of(FAST, 9.0, 1), run_of(FAST, 1.0, 2)]
    theirs = [run_of(SLOW, 1.0, 0), run_of(SLOW, 9.0, 1), run_of(SLOW, 2.0, 2)]
    speed, *_ = trl.results_of(DEMO, ours, theirs, ["ours, seed 0: failed"])
    assert list(speed.repetitions) == pytest.approx([45 / 36, 10 / 4])
    assert "ours, seed 0: failed" in speed.notes


def test_discarded_and_unfinished_rollouts_count_as_drawn() -> None:
    ours = run_of(FAST, 1.0, 0, trained=64, stale=3, filtered=2, errored=1, inFlight=4)
    speed, samples, drawn = trl.results_of(DEMO, [ours], [run_of(SLOW, 2.0, 0)], [])
    assert drawn.name == "demo, samples drawn"
    assert drawn.ratio == pytest.approx((512 + 10 * DEMO.rollouts_per_example) / 640)
    assert samples.ratio == pytest.approx(512 / 640)
    assert speed.figures["drawn"] == {"ours": [592], "trl": [640]}


def test_load_before_every_run_and_calibration_belongs_to_all_results() -> None:
    ours, theirs = run_of(FAST, 1.0, 0, load=0.1), run_of(SLOW, 2.0, 0, load=1.98)
    tried = trl_runs.Calibration(trl_runs.TrlOptions(), [trl_runs.TrlPace(trl_runs.TrlOptions(), 2.0)], [0.3])
    found = trl.results_of(DEMO, [ours], [theirs], [], tried)
    assert [list(result.cores_busy) for result in found] == [[0.1, 1.98, 0.3]] * 3


def test_side_that_misses_the_target_leaves_no_ratio_and_a_note() -> None:
    missed = [trace(FAST, 1.0)], [trace([0.4] * 40, 1.0)]
    speed, samples, drawn = trl.results_of(DEMO, *missed, ["trl, seed 1: ended"])
    assert (speed.ratio, speed.with_startup, samples.ratio, drawn.ratio) == (None, None, None, None)
    assert "trl: 1 of 1 runs did not reach 0.7" in speed.notes
    assert "trl, seed 1: ended" in speed.notes
    assert trl.results_of(DEMO, [], [trace(SLOW, 1.0)], [])[0].ratio is None


def test_options_named_on_the_command_line_are_not_called_the_fastest() -> None:
    speed, *_ = trl.results_of(DEMO, [run_of(FAST, 1.0, 0)], [run_of(SLOW, 2.0, 0)], [])
    assert "fastest" not in speed.notes[1]


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
