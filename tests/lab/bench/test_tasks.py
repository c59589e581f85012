"""Runs and models of the tasks that are measured."""

import pytest
from rlrun.api.model import RLModel
from rlrun.api.run import RLRun

from bench.tasks import MIDDLE, TASKS, Task


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_run_and_model_of_a_task_are_valid(task: Task) -> None:
    run = RLRun.model_validate(task.run_object("bench", "bench", 1))
    model = RLModel.model_validate(task.model.manifest())
    assert run.spec.model == model.spec.id
    assert run.spec.sampling.max_tokens > int(task.env_args["max_length"])
    assert 2 * int(task.env_args["max_length"]) + 2 <= model.spec.seq_len
    assert (task.folder / "pyproject.toml").exists()


def test_middle_model_has_its_own_source_and_more_memory() -> None:
    spec = RLModel.model_validate(MIDDLE.manifest()).spec
    assert spec.source.endswith("rlrun/uneven-text-28m")
    assert spec.inference.extra_args[-1] == str(2**28)
