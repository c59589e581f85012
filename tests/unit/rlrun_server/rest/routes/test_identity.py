"""Identity, namespaces and models of a caller."""

import pytest
from rlrun_server.rest.base import access
from rlrun_server.rest.objects import visible_namespaces
from rlrun_server.runtime.rate_limit import Rate

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


async def test_reviews_of_a_user_with_many_namespaces_and_tokens_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "REVIEWS", Rate(per_second=4.0, burst=100.0))
    now = [100.0]
    api = rest_api(clock=lambda: now[0])
    api.add(*(run_object("a", f"team-{n:03d}", n) for n in range(60)))

    async def statuses(user: str, tokens: range) -> list[int]:
        """Ask with tokens of which each is another identity for the API server, as those of pods are."""
        found = []
        for number in tokens:
            api.api.users[f"{user}-{number}"] = f"system:serviceaccount:{user}:pod-{number}"
            headers = {"Authorization": f"Bearer {user}-{number}"}
            found.append((await api.client.get("/runs", headers=headers)).status_code)
        return found

    before = api.api.reviews
    assert await statuses("eve", range(10)) == [200, 200, *[429] * 8]
    assert api.api.reviews - before <= 2 * 61 + 10
    assert await statuses("ann", range(1)) == [200], "others are not concerned"
    now[0] += 10
    assert await statuses("eve", range(10, 13)) == [200, 429, 429], "22 too many were repaid by 40 of these 10 s"


async def test_a_user_of_five_namespaces_is_limited_by_requests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    api = rest_api(clock=lambda: now[0])
    names = [f"team-{n}" for n in range(5)]
    api.add(*(run_object("a", name, n) for n, name in enumerate(names)))
    user = api.user("ann", *(f"list rlruns in {name}" for name in names))
    for number in range(600):
        now[0] += 0.05
        path = "/runs" if number % 2 else f"/namespaces/{names[number % 5]}/runs"
        assert (await api.client.get(path, headers=user)).status_code == 200, number


async def test_models_are_shown_without_variables_of_their_pods(api: RestApi) -> None:
    answer = await api.client.get("/models", headers=api.user("ann"))
    assert [(model["id"], model["seqLen"]) for model in answer.json()["items"]] == [("me/tiny", 64)]
    assert "do-not-tell" not in answer.text
