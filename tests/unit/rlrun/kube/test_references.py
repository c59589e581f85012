import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from rlrun.api.base.names import CheckpointId
from rlrun.api.model import RLModelSpec
from rlrun.kube.references import checkpoint_id, find_model, pool_name, pool_url, split_checkpoint_id
from rlrun.protocol.problem import Problem
from yarl import URL

from tests.support.cluster_objects import model_object


def test_a_model_is_found_by_its_id() -> None:
    found = find_model("b/two", [model_object("a/one"), {**model_object("b/two"), "status": {"unknown": 1}}])
    assert isinstance(found, RLModelSpec)
    assert found.id == "b/two"


@pytest.mark.parametrize(
    ("models", "reason", "said"),
    [
        ([], "ModelNotFound", "none; the platform team adds RLModels"),
        ([model_object("b/two"), model_object("a/one")], "ModelNotFound", "Available models: a/one, b/two"),
        ([model_object("c/three", seqLen=-1)], "ModelInvalid", "seqLen"),
    ],
)
def test_a_model_that_cannot_be_used_is_a_problem(models: list[dict[str, object]], reason: str, said: str) -> None:
    found = find_model("c/three", models)
    assert isinstance(found, Problem)
    assert found.reason == reason
    assert said in found.message


def test_a_checkpoint_without_a_namespace_is_in_the_runs() -> None:
    assert split_checkpoint_id("first-step-000010-abc", "team") == ("team", "first-step-000010-abc")
    assert split_checkpoint_id("other/first-step-000010-abc", "team") == ("other", "first-step-000010-abc")


@pytest.mark.parametrize("name", ["first-step-000010-abc", "made-by.hand"])
def test_the_id_of_a_checkpoint_names_it_in_every_namespace(name: str) -> None:
    found = checkpoint_id("other", name)
    assert found == f"cp_other.{name}"
    assert split_checkpoint_id(found, "team") == ("other", name)
    TypeAdapter(CheckpointId).validate_python(found)


def test_an_id_without_a_namespace_is_a_name_in_the_runs() -> None:
    assert split_checkpoint_id("cp_abc123", "team") == ("team", "abc123")


@given(st.text())
def test_no_id_of_a_model_leads_to_another_host(model: str) -> None:
    assert re.fullmatch(r"rlserve-[a-z0-9-]{1,48}", pool_name(model))
    url = URL(pool_url("team", model))
    assert (url.scheme, url.host, url.port, url.path) == ("http", f"{pool_name(model)}.team.svc", 8000, "/v1")
    assert not url.query_string
    assert url.user is None


@pytest.mark.parametrize("other", ["a.b", "A/b", "a/b/"])
def test_ids_that_look_alike_have_different_pools(other: str) -> None:
    assert pool_name("a/b") != pool_name(other)
