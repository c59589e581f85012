"""Requests of prime 0.18.0 for dedicated runs: they are read as the file in `config` would be."""

from typing import Any

import pytest
from rlrun.api.base.field_errors import FieldProblem
from rlrun.api.toml.client_requests import RequestProblem
from rlrun.api.toml.dedicated_requests import DedicatedRun, read_new_run, read_resume

CONFIG: dict[str, Any] = {
    "name": "my-run",
    "max_steps": 5,
    "seq_len": 2048,
    "model": {"name": "Qwen/Qwen3-0.6B"},
    "wandb": {"project": "p"},
    "deployment": {"type": "single_node", "num_train_gpus": 1, "num_infer_gpus": 1},
    "orchestrator": {
        "batch_size": 8,
        "group_size": 4,
        "train": {"source": [{"env": {"taskset": {"id": "reverse-text"}}}]},
        "eval": {
            "interval": 5,
            "skip_first_step": False,
            "source": [{"env": {"taskset": {"id": "lab/reverse-text"}}}],
        },
    },
    "trainer": {"optim": {"lr": 1e-05}},
    "inference": {},
}
BODY = {"config": CONFIG, "name": "my-run", "teamId": None, "imageTag": "main", "gpuType": "H100_80GB"}
SOURCE = ("config", "orchestrator", "train", "source", 0, "env", "taskset", "id")


def problems_in(**more: Any) -> dict[tuple[str | int, ...], str]:
    found = read_new_run({**BODY, **more}, "team")
    assert isinstance(found, list)
    return {problem.location: problem.message for problem in found}


def test_the_configuration_of_the_trainer_becomes_a_run_with_its_variables() -> None:
    found = read_new_run({**BODY, "wandbApiKey": "hidden", "hfToken": "also", "secrets": {"JUDGE": "3"}}, "team")
    assert isinstance(found, DedicatedRun)
    spec = found.run.spec
    assert (spec.name, spec.model, spec.max_steps, spec.env[0].id) == (
        "my-run",
        "Qwen/Qwen3-0.6B",
        5,
        "team/reverse-text",
    )
    assert (spec.lora.enabled, spec.learning_rate, spec.rollouts_per_example) == (False, 1e-5, 4)
    assert found.run.secrets == {"WANDB_API_KEY": "hidden", "HF_TOKEN": "also", "JUDGE": "3"}
    assert "hidden" not in repr(found)
    assert (found.run.team_id, found.resume_from) == (None, None)


def test_a_problem_of_the_run_is_one_of_the_field_that_the_file_has() -> None:
    found = read_new_run(BODY, "team")
    assert isinstance(found, DedicatedRun)
    assert found.run.locate(FieldProblem("env[0].id", "is [missing]")) == RequestProblem(SOURCE, "is (missing)")
    assert found.run.locate(FieldProblem("model", "m")).location == ("config", "model", "name")
    assert problems_in(config={**CONFIG, "max_steps": -1}).keys() == {("config", "max_steps")}


@pytest.mark.parametrize(
    ("more", "location", "reason"),
    [
        ({"mode": "sft"}, ("mode",), "demonstrations come from the environments"),
        ({"volume": "v"}, ("volume",), "S3"),
        ({"sourceRef": "a"}, ("sourceRef",), "the chart's images"),
        ({"imageTags": 1}, ("imageTags",), "did you mean imageTag"),
        ({"config": 3}, ("config",), "must be an object"),
        ({"name": 3}, ("name",), "must be a string"),
        ({"secrets": {"1": "hidden"}}, ("secrets",), "letters"),
        ({"secrets": {"A": 3}}, ("secrets", "A"), "must be a string"),
        ({"config": {**CONFIG, "env_file": ["a"]}}, ("config",), "cannot read your files"),
        ({"config": {**CONFIG, "resume": {}}}, ("config", "resume"), "checkpoint_id"),
    ],
    ids=str,
)
def test_what_a_run_here_cannot_have_is_refused(
    more: dict[str, Any], location: tuple[str | int, ...], reason: str
) -> None:
    found = problems_in(**more)
    assert list(found) == [location]
    assert reason in found[location]
    assert "hidden" not in str(found)


def test_the_name_beside_the_file_holds_if_the_file_has_none() -> None:
    found = read_new_run({**BODY, "config": {k: v for k, v in CONFIG.items() if k != "name"}}, "team")
    assert isinstance(found, DedicatedRun)
    assert found.run.spec.name == "my-run"


def test_a_resumed_run_gets_its_variables_again() -> None:
    assert read_resume({}) == {}
    assert read_resume({"wandbApiKey": "k", "gpuType": "A", "imageTag": "b"}) == {"WANDB_API_KEY": "k"}
    for wrong in ([], {"config": {}}, {"hfToken": 3}):
        assert isinstance(read_resume(wrong), list)
