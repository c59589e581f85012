"""Identity, namespaces and models of a caller."""

import pytest
from rlrun_server.rest import visible_namespaces

from tests.support.rest_api import RestApi, rest_api, run_object


@pytest.fixture
def api() -> RestApi:
    found = rest_api()
    found.add(run_object("a", "one", 1), run_object("b", "one", 2), run_object("c", "two", 3))
    model = {
        "kind": "RLModel",
        "metadata": {"name": "tiny", "uid": "u", "resourceVersion": "1"},
        "spec": {"id": "me/tiny", "seqLen": 64, "trainer": {"env": [{"name": "HF_TOKEN", "value": "do-not-tell"}]}},
    }
    found.add(model)
    return found


async def test_whoami(api: RestApi) -> None:
    answer = await api.client.get("/whoami", headers=api.user("ann"))
    assert answer.json() == {"name": "ann", "uid": "uid-ann", "groups": ["system:authenticated"]}


async def test_namespaces_are_those_whose_runs_the_user_may_list(api: RestApi) -> None:
    answer = await api.client.get("/namespaces", headers=api.user("ann", "list rlruns in one", "get rlruns in two"))
    assert answer.json() == {"items": [{"name": "one", "runs": 2}], "isComplete": True}
    everything = await api.client.get("/namespaces", headers=api.user("root", "list rlruns in "))
    assert [item["name"] for item in everything.json()["items"]] == ["one", "two"]


async def test_a_user_is_asked_about_for_a_bounded_number(api: RestApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visible_namespaces, "MAX_NAMESPACES", 1)
    user = api.user("ann", "list rlruns in one", "list rlruns in two")
    answer = await api.client.get("/namespaces", headers=user)
    assert answer.json() == {"items": [{"name": "one", "runs": 2}], "isComplete": False}
    reviews = api.api.reviews
    runs = await api.client.get("/runs", headers=user)
    assert runs.json()["isComplete"] is False
    assert api.api.reviews == reviews, "the answer is kept for a while"


async def test_models_are_shown_without_variables_of_their_pods(api: RestApi) -> None:
    answer = await api.client.get("/models", headers=api.user("ann"))
    assert [(model["id"], model["seqLen"]) for model in answer.json()["items"]] == [("me/tiny", 64)]
    assert "do-not-tell" not in answer.text
