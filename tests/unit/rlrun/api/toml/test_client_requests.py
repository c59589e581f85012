"""Requests of hosted clients: what each key becomes, and how problems name the field of the request."""

from typing import Any

import pytest
from rlrun.api.run import RLRunSpec
from rlrun.api.toml.client_requests import ALL_KEYS, ClientRun, RequestProblem, read_request

SMALLEST: dict[str, Any] = {
    "model": {"name": "org/model"},
    "environments": [{"id": "owner/name"}],
    "rollouts_per_example": 8,
    "max_steps": 100,
    "batch_size": 128,
    "secrets": [],
}


def accepted(**more: Any) -> ClientRun:
    found = read_request({**SMALLEST, **more})
    assert isinstance(found, ClientRun), found
    return found


def values(run: ClientRun) -> dict[str, Any]:
    """Return the fields that differ from those of the smallest request."""
    plain = accepted().spec.model_dump(mode="json")
    return {key: value for key, value in run.spec.model_dump(mode="json").items() if value != plain[key]}


def refused(**more: Any) -> dict[tuple[str | int, ...], str]:
    found = read_request({**SMALLEST, **more})
    assert isinstance(found, list), found
    return {problem.location: problem.message for problem in found}


def test_the_smallest_request() -> None:
    assert accepted().spec == RLRunSpec.model_validate({"model": "org/model", "env": [{"id": "owner/name"}]})


EQUAL_REWARDS = {"enabled": True, "min_reward_variance": 0.0, "max_reward": None, "min_reward": None}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"name": "n", "learning_rate": 1e-5}, {"name": "n", "learning_rate": 1e-5}),
        ({"max_steps": "20"}, {"max_steps": 20}),
        ({"max_steps": 20.0}, {"max_steps": 20}),
        ({"learning_rate": "3e-5"}, {"learning_rate": 3e-5}),
        ({"buffer": {"online_difficulty_filtering": "yes"}}, {"buffer": True}),
        ({"buffer": {"online_difficulty_filtering": 1, "seed": None}}, {"buffer": True}),
        ({"name": "", "checkpoint_id": "", "temperature": None, "unknown_but_null": None}, {}),
        ({"compute_size": ""}, {}),
        ({"compute_size": "L"}, {"infrastructure": {"compute_size": "L", "dedicated": False}}),
        ({"checkpoint_id": "cp_team.c"}, {"checkpoint_id": "cp_team.c"}),
        ({"val": {"interval": "7"}}, {"val": {"num_examples": 64, "rollouts_per_example": 1, "interval": 7}}),
        ({"eval": {"interval": 5}}, {}),
        ({"run_config": {}, "pre_batch_filters": [], "post_batch_filters": [], "loss": "rl"}, {}),
        ({"pre_batch_filters": [{"type": "zero_advantage", "enforce": True}]}, {"difficulty_filter": EQUAL_REWARDS}),
        ({"max_inflight_rollouts": 256}, {}),
        ({"max_inflight_rollouts": 448}, {"oversampling_factor": 3.5, "max_async_level": 4}),
        ({"oversampling_factor": 3}, {"oversampling_factor": 3.0, "max_async_level": 3}),
        ({"oversampling_factor": 3, "max_async_level": 1}, {"oversampling_factor": 3.0, "max_async_level": 3}),
        ({"max_async_level": 1}, {"oversampling_factor": 1.0, "max_async_level": 1}),
        (
            {"oversampling_factor": 12},
            {"oversampling_factor": 12.0, "max_async_level": 12, "max_off_policy_steps": 12},
        ),
    ],
    ids=str,
)
def test_what_keys_become(more: dict[str, Any], expected: dict[str, Any]) -> None:
    found = values(accepted(**more))
    if expected.get("buffer") is True:
        found["buffer"] = found["buffer"]["online_difficulty_filtering"]
    assert found == expected


def test_sampling_is_at_the_top_level() -> None:
    sampling = {"max_tokens": "5", "temperature": "0.5", "repetition_penalty": 1, "min_tokens": 2, "seed": 3}
    found = accepted(**sampling).spec
    assert found.sampling.model_dump(exclude_unset=True) == {**sampling, "max_tokens": 5, "temperature": 0.5}
    assert found.seed == 0


def test_variables_of_the_chat_template_are_at_the_top_level_or_in_extra_body() -> None:
    assert accepted(enable_thinking=False).spec.sampling.enable_thinking is False
    assert accepted(reasoning_effort="low").spec.sampling.reasoning_effort == "low"
    body = {"chat_template_kwargs": {"enable_thinking": True}}
    assert accepted(extra_body=body).spec.sampling.enable_thinking is True
    for other in ({"top_k": 5}, {"chat_template_kwargs": {"clear_thinking": True}}, {"chat_template_kwargs": "x"}):
        assert "supports no other" in refused(extra_body={**body, **other})["extra_body",]


def test_environments_and_evaluations() -> None:
    evaluation = {
        "interval": 5,
        "skip_first_step": "true",
        "environments": [{"id": "o/e@2.0", "version": "1.0", "group_size": 4, "num_examples": "-1"}],
    }
    entry = {"id": "o/a@1.0", "name": "", "args": {"n": "1", "empty": ""}, "taskset": {"x": 1}, "ratio": "0.5"}
    found = accepted(environments=[entry, {"id": "o/b@", "ratio": 2}], eval=evaluation).spec
    first, second = found.env
    assert (first.id, first.version, first.name, first.weight) == ("o/a", "1.0", None, 0.5)
    assert (first.args, first.taskset) == ({"n": "1", "empty": ""}, {"x": 1}), "free-form values stay as they are"
    assert (second.id, second.version, second.weight) == ("o/b", None, 2.0)
    assert found.eval is not None
    assert (found.eval.interval, found.eval.eval_base_model) == (5, False)
    exam = found.eval.env[0]
    assert (exam.id, exam.version, exam.rollouts_per_example, exam.num_examples) == ("o/e", "1.0", 4, -1)


def test_an_evaluation_has_its_own_sampling() -> None:
    evaluation = {"environments": [{"id": "o/a"}], "sampling": {"max_tokens": "64", "enable_thinking": False}}
    found = accepted(eval=evaluation, max_tokens=32).spec.eval
    assert found is not None
    assert found.sampling is not None
    assert found.sampling.model_dump(exclude_none=True) == {"max_tokens": 64, "enable_thinking": False}
    without = accepted(eval=evaluation | {"sampling": None}).spec.eval
    assert without is not None
    assert without.sampling is None


def test_wandb_secrets_and_team() -> None:
    found = accepted(
        monitoring={"wandb": {"project": "p", "entity": "", "name": "n"}},
        secrets=[{"key": "A", "value": "1"}, {"key": "B", "value": "2"}, {"key": "A", "value": "3"}],
        team_id="team",
    )
    assert found.spec.wandb is not None
    assert (found.spec.wandb.project, found.spec.wandb.entity, found.spec.wandb.name) == ("p", None, "n")
    assert (list(found.secrets.items()), found.team_id) == ([("A", "3"), ("B", "2")], "team")
    assert "'3'" not in repr(found)


@pytest.mark.parametrize(
    ("more", "location", "said"),
    [
        ({"model": {"name": ""}}, ("model", "name"), "is required"),
        ({"environments": []}, ("environments",), "is empty"),
        ({"environments": [{"id": "o/a"}, {"id": "plain"}]}, ("environments", 1, "id"), "wrong format"),
        ({"environments": [{"id": "o/a", "ratio": 0}]}, ("environments", 0, "ratio"), "greater than 0"),
        ({"environments": [{"id": "o/a", "pool": {}}]}, ("environments", 0, "pool"), "compute_size"),
        ({"environments": [{"taskset": {"x": 1}}]}, ("environments", 0, "id"), "is required"),
        ({"environments": [{"taskset": {"id": "plain"}}]}, ("environments", 0, "taskset", "id"), "wrong format"),
        ({"eval": {"environments": [{"id": "plain"}]}}, ("eval", "environments", 0, "id"), "wrong format"),
        ({"eval": {"environments": [{"id": "o/a"}], "interval": 0}}, ("eval", "interval"), "greater than"),
        (
            {"eval": {"environments": [{"id": "o/a"}], "sampling": {"x": 1}}},
            ("eval", "sampling", "x"),
            "unknown",
        ),
        ({"temperature": -1}, ("temperature",), "greater than 0"),
        ({"temperature": "nan"}, ("temperature",), "valid number"),
        ({"max_steps": 12.5}, ("max_steps",), "valid integer"),
        ({"name": 5}, ("name",), "valid string"),
        ({"batch_size": 100}, ("batch_size",), "multiple of rollouts_per_example"),
        ({"compute_size": "XL"}, ("compute_size",), "'S', 'M' or 'L'"),
        ({"buffer": {"env_ratios": [1, 0.5]}}, ("buffer", "env_ratios"), "one number per entry"),
        ({"buffer": {"sed": 1}}, ("buffer", "sed"), "did you mean seed?"),
        ({"monitoring": {"wandb": {"team": "x"}}}, ("monitoring", "wandb", "team"), "unknown field"),
        ({"wandb": {"project": "x"}}, ("wandb",), "unknown field"),
        ({"reasoning_effort": "extreme"}, ("reasoning_effort",), "'low', 'medium' or 'high'"),
        ({"cluster_name": "c"}, ("cluster_name",), "stays in its cluster"),
        ({"loss": "sft"}, ("loss",), 'must be "rl"'),
        ({"teacher": {"model": {"name": "t"}}}, ("teacher",), "algorithm.teacher"),
        ({"pre_batch_filters": [{"type": "other"}]}, ("pre_batch_filters", 0), "zero_advantage"),
        ({"pre_batch_filters": "all"}, ("pre_batch_filters", 0), "zero_advantage"),
        ({"max_inflight_rollouts": 64}, ("max_inflight_rollouts",), "1 to 16 times"),
        ({"max_inflight_rollouts": 10**400}, ("max_inflight_rollouts",), "1 to 16 times"),
        ({"max_inflight_rollouts": 256, "oversampling_factor": 2}, ("max_inflight_rollouts",), "use only one"),
        ({"secrets": [{"key": "1 x", "value": "hidden"}]}, ("secrets", 0, "key"), "letters"),
        ({"secrets": [{"key": "A", "value": 17}]}, ("secrets", 0, "value"), "string"),
        ({"secrets": {"A": "hidden"}}, ("secrets",), "list"),
        ({"team_id": 3}, ("team_id",), "string"),
    ],
    ids=str,
)
def test_problems_are_at_the_field_of_the_request(
    more: dict[str, Any], location: tuple[str | int, ...], said: str
) -> None:
    found = refused(**more)
    assert list(found) == [location]
    assert said in found[location]
    assert not {"[", "]"} & set(found[location]), "the clients read square brackets as markup"
    assert "hidden" not in found[location]


def test_a_request_with_all_that_the_newer_client_has() -> None:
    """The request was recorded from the client. A group size of its own is what an environment here cannot have."""
    body = {
        "model": {"name": "org/m"},
        "environments": [
            {"id": "o/e", "max_retries": 2, "version": "1.2"},
            {"taskset": {"id": "own/ts", "n": 3}, "harness": {"id": "default"}, "group_size": 4},
        ],
        "rollouts_per_example": 8,
        "max_steps": 3,
        "batch_size": 16,
        "secrets": [],
        "max_tokens": 5,
        "eval": {
            "environments": [{"taskset": {"id": "own/ts"}, "group_size": 2}],
            "interval": 5,
            "skip_first_step": True,
        },
        "pre_batch_filters": [{"type": "zero_advantage", "enforce": True}],
    }
    assert {".".join(map(str, location)): message for location, message in refused(**body).items()} == {
        "environments.0.max_retries": "has no equivalent: failed rollouts are not trained on; retry in the "
        "environment's code",
        "environments.1.group_size": "has no equivalent: rollouts_per_example applies to all environments",
    }


def test_variables_of_the_chat_template_do_not_replace_others() -> None:
    for value in (True, None, ""):
        body = {"chat_template_kwargs": {"enable_thinking": value}}
        run = read_request({**SMALLEST, "enable_thinking": True, "extra_body": body})
        assert isinstance(run, ClientRun)
        assert run.spec.sampling.enable_thinking is True
    found = refused(enable_thinking=True, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert found == {
        ("extra_body", "chat_template_kwargs", "enable_thinking"): "has the same meaning as enable_thinking: use only "
        "one of them"
    }


def test_a_section_that_is_no_object_is_a_problem_of_the_section() -> None:
    for key in ("model", "eval", "monitoring"):
        assert refused(**{key: "text"})[key,] == "must be an object"


def test_all_problems_are_found_at_once() -> None:
    found = refused(model={}, max_steps=-1, cluster_name="c", secrets=[{}], nonsense=1, environments=[{"id": "x"}])
    assert set(found) == {
        ("model", "name"),
        ("max_steps",),
        ("cluster_name",),
        ("secrets", 0, "key"),
        ("nonsense",),
        ("environments", 0, "id"),
    }


@pytest.mark.parametrize("body", [None, [], "text", 5])
def test_a_body_that_is_no_object_is_a_problem(body: Any) -> None:
    assert read_request(body) == [RequestProblem((), "must be a JSON object")]


@pytest.mark.parametrize("key", ALL_KEYS)
@pytest.mark.parametrize("value", [[], [1], {"a": 1}, 7, True, "text", [[{}]], {"environments": {"a": 1}}], ids=str)
def test_no_value_of_any_key_is_more_than_a_problem(key: str, value: Any) -> None:
    assert isinstance(read_request({**SMALLEST, key: value}), ClientRun | list)


@pytest.mark.parametrize(
    ("given", "version"), [("o/e", None), ("o/e@", None), ("o/e@latest", None), ("o/e@1.0", "1.0"), ("o/e==1.0", "1.0")]
)
def test_every_form_of_a_version_is_read(given: str, version: str | None) -> None:
    found = accepted(environments=[{"id": given}]).spec
    assert (found.env[0].id, found.env[0].version) == ("o/e", version)
