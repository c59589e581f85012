"""Comparison with TRL: ratios, notes, equal settings on both sides, and the choice of TRL's fastest options."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from rlrun.api.model import RLModel
from rlrun.api.run import RLRun

from bench import trl, trl_runs
from bench.report import Result
from bench.reward_curves import Step, Trace
from bench.tasks import DEMO, TASKS, WAITING, Task
from bench.trl_runs import Calibration, TrlFailed, TrlOptions

FAST = [0.4, 0.7, 0.8, 0.9]
SLOW = [0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
TRIED = Calibration(TrlOptions(), {"static batches, 2 torch threads": 2.0}, [0.3])


def run_of(
    rewards: list[float], each: float, seed: int = 0, startup: float = 30.0, load: float = 0.1, **groups: int
) -> Trace:
    steps = [Step(each * (i + 1), reward, 128) for i, reward in enumerate(rewards)]
    return Trace(steps, startup, seed, {"cores_busy_before": load, "groups": groups})


def results(ours: list[Trace], theirs: list[Trace], *problems: str) -> list[Result]:
    return trl.results_of(DEMO, {"ours": ours, "trl": theirs}, problems, TRIED)


def test_number_is_the_median_of_the_ratios_of_repetitions() -> None:
    # Ours arrive with step 4 (0.8 on average over 2..4), TRL's with step 5.
    ours = [run_of(FAST, each, seed) for seed, each in enumerate((1.0, 2.0, 4.0))]
    speed, samples, _ = results(ours, [run_of(SLOW, 2.0, seed) for seed in range(3)])
    assert list(speed.repetitions) == pytest.approx([10 / 4, 10 / 8, 10 / 16])
    assert speed.ratio == pytest.approx(10 / 8)
    assert samples.ratio == pytest.approx(4 / 5)
    assert len(speed.samples) == 6
    assert speed.notes[0].startswith("ours 4 s (4 steps, 512 rollouts trained on of 512 drawn) and 8 s (4 steps")


def test_start_up_of_both_sides_is_counted_in_the_second_number() -> None:
    speed, samples, _ = results([run_of(FAST, 1.0, startup=36.0)], [run_of(SLOW, 2.0, startup=10.0)])
    assert speed.ratio == pytest.approx(10 / 4)
    assert speed.with_startup == pytest.approx((10 + 10) / (36 + 4))
    assert samples.with_startup is None


def test_repetitions_are_paired_by_seed_if_one_run_failed() -> None:
    # Paired by place, 10 / 4 would be compared with the wrong run.
    ours = [run_of(FAST, 9.0, 1), run_of(FAST, 1.0, 2)]
    theirs = [run_of(SLOW, 1.0, 0), run_of(SLOW, 9.0, 1), run_of(SLOW, 2.0, 2)]
    speed, *_ = results(ours, theirs, "ours, seed 0: failed")
    assert list(speed.repetitions) == pytest.approx([45 / 36, 10 / 4])
    assert "ours, seed 0: failed" in speed.notes


def test_discarded_and_unfinished_rollouts_count_as_drawn() -> None:
    ours = run_of(FAST, 1.0, trained=64, stale=3, filtered=2, errored=1, inFlight=4)
    _, samples, drawn = results([ours], [run_of(SLOW, 2.0)])
    assert drawn.name == "demo, samples drawn"
    assert drawn.ratio == pytest.approx((512 + 10 * DEMO.rollouts_per_example) / 640)
    assert samples.ratio == pytest.approx(512 / 640)
    assert drawn.figures == {"ours": [592], "trl": [640]}


def test_load_before_every_run_and_calibration_belongs_to_all_results() -> None:
    found = results([run_of(FAST, 1.0, load=0.1)], [run_of(SLOW, 2.0, load=1.98)])
    assert [list(result.cores_busy) for result in found] == [[0.1, 1.98, 0.3]] * 3


def test_side_that_misses_the_target_leaves_no_ratio_and_a_note() -> None:
    speed, samples, drawn = results([run_of(FAST, 1.0)], [run_of([0.4] * 40, 1.0)], "trl, seed 1: ended")
    assert (speed.ratio, speed.with_startup, samples.ratio, drawn.ratio) == (None, None, None, None)
    assert "trl: 1 of 1 runs did not reach 0.7" in speed.notes
    assert "trl, seed 1: ended" in speed.notes
    assert results([], [run_of(SLOW, 1.0)])[0].ratio is None


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_both_sides_get_the_same_settings(task: Task, tmp_path: Path) -> None:
    run = RLRun.model_validate(task.run_object("bench", "bench", 7)).spec
    theirs = json.loads(json.dumps(task.trl_settings(tmp_path, 7, 2)))
    names = ("batch_size", "rollouts_per_example", "learning_rate", "lora_alpha", "seed")
    assert {name: theirs[name] for name in names} == {name: getattr(run, name) for name in names}
    assert (theirs["temperature"], theirs["max_tokens"]) == (run.sampling.temperature, run.sampling.max_tokens)
    assert theirs["env_args"] == run.env[0].args
    lora = RLModel.model_validate(task.model.manifest()).spec.lora
    assert (theirs["lora_rank"], theirs["target_modules"]) == (lora.rank, lora.target_modules)


def calibrated(monkeypatch: pytest.MonkeyPatch, *outcomes: float | int | TrlFailed) -> Calibration:
    """Calibrate with one thread, two, and continuous batching: seconds a step, or a number of steps, or a failure."""
    left = iter(outcomes)

    def run(task: Any, _: int, options: TrlOptions, *, target: float) -> Trace:
        assert not task.waits
        assert target == math.inf
        found = next(left)
        if isinstance(found, TrlFailed):
            raise found
        each, count = (found, 4) if isinstance(found, float) else (1.0, found)
        # The first step is slow for other reasons.
        return Trace([Step(60.0 + i * each, 0.5, 8) for i in range(count)], 10.0)

    monkeypatch.setattr(trl_runs, "run", run)
    return trl_runs.fastest(WAITING, load=lambda: 0.1)


def test_fastest_options_of_trl_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    found = calibrated(monkeypatch, 3.0, 2.0, 9.0)
    assert found.best == TrlOptions(2)
    assert found.seconds == {
        "static batches, 1 torch thread": 3.0,
        "static batches, 2 torch threads": 2.0,
        "continuous batching, 2 torch threads": 9.0,
    }
    assert found.cores_busy == [0.1] * 3
    assert calibrated(monkeypatch, 2.0, 3.0, 1.0).best == TrlOptions(1, continuous=True)


def test_options_that_complete_no_two_steps_are_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    found = calibrated(monkeypatch, 30.0, 0, 1)
    assert (found.best, found.seconds["continuous batching, 1 torch thread"]) == (TrlOptions(1), None)
    with pytest.raises(TrlFailed, match="no options of TRL completed two steps"):
        calibrated(monkeypatch, 1, 1, 1)


def test_failed_options_are_an_error_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrlFailed, match="exited with code 1"):
        calibrated(monkeypatch, 3.0, TrlFailed("TRL exited with code 1"))
