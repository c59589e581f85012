"""Which containers get which variables of an RLModel, and which of its variables are credentials in clear text."""

from typing import Any

import pytest
from rlrun.api.model import RLModelSpec
from rlrun_operator.resources.models.model_variables import clear_text_credentials, run_variables, secret_variables

from tests.support.built_children import HUB, Obj, build, build_pool, container_of, containers, templates, variables

FETCHER = {("reverse-trainer", "fetch-model"), ("reverse-inference", "fetch-model")}
ROLES = {("reverse-trainer", "trainer"), ("reverse-inference", "vllm")}


def from_secret(name: str, secret: str = "hub", **more: Any) -> Obj:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": "token", **more}}}


def model(*env: Obj, source: str = HUB) -> Obj:
    return {"source": source, "trainer": {"env": list(env)}, "inference": {"env": list(env)}}


def readers(name: str, shape: Obj) -> set[tuple[str, str]]:
    """The containers of a run that have the variable, each with its pod."""
    return {
        (pod, container["name"])
        for pod, template in templates(build(shape)).items()
        for container in containers(template)
        if name in variables(container)
    }


@pytest.mark.parametrize(
    ("entry", "source", "expected"),
    [
        (from_secret("HF_TOKEN"), HUB, FETCHER),
        (from_secret("HF_TOKEN"), "s3://rlrun/models/a", set()),
        (from_secret("HF_TOKEN"), "pvc://claim/a", set()),
        ({"name": "HF_ENDPOINT", "value": "http://mirror"}, HUB, FETCHER | ROLES),
        ({"name": "HF_ENDPOINT", "value": "http://mirror"}, "s3://rlrun/models/a", ROLES),
        (from_secret("LICENSE_KEY"), HUB, ROLES),
        ({"name": "NCCL_DEBUG", "value": "INFO"}, HUB, ROLES),
        ({"name": "HF_HUB_OFFLINE", "value": "0"}, HUB, ROLES),
    ],
)
def test_a_variable_reaches_only_the_containers_that_need_it(
    entry: Obj, source: str, expected: set[tuple[str, str]]
) -> None:
    assert readers(entry["name"], model(entry, source=source)) == expected


def test_a_container_gets_the_reference_and_not_a_value() -> None:
    env = [from_secret("HF_TOKEN"), from_secret("LICENSE_KEY", optional=True), {"name": "EMPTY"}]
    _, fetcher, main = containers(templates(build(model(*env)))["reverse-trainer"])
    assert from_secret("HF_TOKEN", optional=False) in fetcher["env"]
    assert from_secret("LICENSE_KEY", optional=True) in main["env"]
    assert {"name": "EMPTY", "value": ""} in main["env"]


def test_a_variable_from_a_secret_replaces_the_platforms_own() -> None:
    main = container_of(templates(build(model(from_secret("RLRUN_SCRATCH"))))["reverse-trainer"], "trainer")
    assert [entry for entry in main["env"] if entry["name"] == "RLRUN_SCRATCH"] == [
        from_secret("RLRUN_SCRATCH", optional=False)
    ]


def test_the_fetcher_of_a_serving_pool_gets_the_token_and_its_engine_does_not() -> None:
    pod = build_pool(**model(from_secret("HF_TOKEN")))["Deployment"]["spec"]["template"]
    assert [c["name"] for c in containers(pod) if "HF_TOKEN" in variables(c)] == ["fetch-model"]


@pytest.mark.parametrize(
    ("source", "expected"), [(HUB, ["HF_TOKEN", "LICENSE_KEY"]), ("pvc://claim/a", ["LICENSE_KEY"])]
)
def test_a_secret_that_no_container_reads_is_not_required(source: str, expected: list[str]) -> None:
    env = [from_secret("HF_TOKEN"), from_secret("LICENSE_KEY"), {"name": "NCCL_DEBUG", "value": "INFO"}]
    spec = RLModelSpec.model_validate({"id": "a/b", "source": source, "trainer": {"env": env}})
    assert [(v.field, v.name) for v in secret_variables(spec.source, run_variables(spec))] == [
        ("trainer.env", name) for name in expected
    ]


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "OPENAI_KEY_TEAM"),
        *("PGPASSWORD", "hf_token", "TOKEN", "GITHUB_TOKEN_READ", "CLIENT_SECRET", "MY_SECRETS"),
    ],
)
def test_a_value_under_the_name_of_a_credential_is_found(name: str) -> None:
    entry = {"name": name, "value": "x"}
    spec = RLModelSpec.model_validate({"id": "a/b", **model(entry)})
    assert clear_text_credentials(spec) == [f"trainer.env[{name}]", f"inference.env[{name}]"]


@pytest.mark.parametrize(
    "entry",
    [
        from_secret("HF_TOKEN"),
        {"name": "HF_TOKEN", "value": ""},
        {"name": "HF_TOKEN"},
        {"name": "TOKENIZERS_PARALLELISM", "value": "false"},
        {"name": "VLLM_MAX_TOKENS", "value": "8"},
        {"name": "HF_TOKEN_PATH", "value": "/tmp/token"},
        {"name": "SSL_KEY_FILE", "value": "/tmp/key"},
        {"name": "AWS_ACCESS_KEY_ID", "value": "AKIA"},
        {"name": "OMP_NUM_THREADS", "value": "1"},
    ],
    ids=lambda entry: f"{entry['name']}-{len(entry)}",
)
def test_other_variables_are_no_credentials_in_clear_text(entry: Obj) -> None:
    assert clear_text_credentials(RLModelSpec.model_validate({"id": "a/b", **model(entry)})) == []
