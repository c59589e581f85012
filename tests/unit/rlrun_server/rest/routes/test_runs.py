"""Lists of runs, one run, and its configuration."""

import random
import tomllib
from datetime import UTC, datetime
from typing import Any

import pytest
from rlrun.api.toml.loader import loads
from rlrun.kube.errors import ApiError
from rlrun_server.rest.context.services import LISTING_SECONDS
from rlrun_server.rest.objects.kept_objects import MAX_OBJECT_BYTES
from rlrun_server.rest.objects.summaries import summarize_run
from rlrun_server.rest.routes.runs import RunDetail, RunFilter, RunList, config_of, matches

from tests.support.rest_api import SPEC, RestApi, rest_api, run_object, uid_of

RIGHTS = ("list rlruns in team", "get rlruns in team")


@pytest.fixture
def api() -> RestApi:
    found = rest_api()
    found.add(
        run_object("alpha", number=1, reward=0.5),
        run_object("beta", number=2, phase="Failed", model="other/model"),
        run_object("gamma", number=3, reward=0.9, name="The Alphabet"),
        run_object("delta", "secret", number=4),
    )
    return found


async def names(api: RestApi, path: str = "/namespaces/team/runs", **query: Any) -> list[str]:
    answer = await api.client.get(path, params=query, headers=api.user("ann", *RIGHTS))
    found = RunList.model_validate(answer.json())
    assert found.total >= len(found.items)
    return [run.name for run in found.items]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["gamma", "beta", "alpha"]),
        ({"sort": "created"}, ["alpha", "beta", "gamma"]),
        ({"sort": "name"}, ["alpha", "beta", "gamma"]),
        ({"sort": "-reward"}, ["gamma", "alpha", "beta"]),
        ({"sort": "reward"}, ["alpha", "gamma", "beta"]),
        ({"sort": "-step"}, ["gamma", "beta", "alpha"]),
        ({"phase": "Failed"}, ["beta"]),
        ({"phase": ["Failed", "Running"]}, ["gamma", "beta", "alpha"]),
        ({"model": "other/model"}, ["beta"]),
        ({"env": "acme/reverse", "name": "ALPHA"}, ["gamma", "alpha"]),
        ({"env": "acme/another"}, []),
        ({"since": "2026-01-01T00:00:02Z"}, ["gamma", "beta"]),
        ({"limit": 1}, ["gamma"]),
    ],
)
async def test_filters_and_order(api: RestApi, query: dict[str, Any], expected: list[str]) -> None:
    assert await names(api, **query) == expected


async def test_runs_of_all_namespaces_are_those_that_the_user_may_list(api: RestApi) -> None:
    assert await names(api, "/runs") == ["gamma", "beta", "alpha"]
    everywhere = await api.client.get("/runs", headers=api.user("root", "list rlruns in "))
    assert [run["name"] for run in everywhere.json()["items"]] == ["delta", "gamma", "beta", "alpha"]


async def test_pages_follow_one_another(api: RestApi) -> None:
    user = api.user("ann", *RIGHTS)
    first = await api.client.get("/namespaces/team/runs", params={"limit": 2}, headers=user)
    assert [run["name"] for run in first.json()["items"]] == ["gamma", "beta"]
    assert first.json()["total"] == 3
    following = first.links["next"]["url"].removeprefix("/rlrun/v1")
    assert following.startswith("/namespaces/team/runs?limit=2&cursor=")
    second = await api.client.get(following, headers=user)
    assert [run["name"] for run in second.json()["items"]] == ["alpha"]
    assert "next" not in second.json()


@pytest.mark.parametrize(
    "query",
    [
        {"limit": -1},
        {"limit": 501},
        {"limit": "x"},
        {"phase": "Sleeping"},
        {"sort": "magic"},
        {"since": "x"},
        {"since": "0.5"},
        {"since": "1767225602"},
        {"fase": 1},
    ],
)
async def test_wrong_parameters_are_named(api: RestApi, query: dict[str, object]) -> None:
    answer = await api.client.get("/namespaces/team/runs", params=query, headers=api.user("ann", *RIGHTS))  # type: ignore[arg-type]
    assert (answer.status_code, answer.json()["reason"]) == (400, "InvalidRequest")
    (error,) = answer.json()["errors"]
    assert error["pointer"].startswith(f"query/{next(iter(query))}")


async def test_a_cursor_of_another_filter_is_refused(api: RestApi) -> None:
    user = api.user("ann", *RIGHTS)
    first = await api.client.get("/namespaces/team/runs", params={"limit": 1}, headers=user)
    for query in ({"cursor": first.json()["next"], "phase": "Failed"}, {"cursor": "made-up"}, {"cursor": "W10"}):
        answer = await api.client.get("/namespaces/team/runs", params=query, headers=user)
        assert (answer.status_code, answer.json()["reason"]) == (400, "CursorMismatch")


@pytest.mark.parametrize("name", ["alpha", uid_of(1)])
async def test_a_run_is_found_by_name_and_uid(api: RestApi, name: str) -> None:
    answer = await api.client.get(f"/namespaces/team/runs/{name}", headers=api.user("ann", *RIGHTS))
    run = RunDetail.model_validate(answer.json())
    assert (run.name, run.uid, run.spec["model"], run.status["phase"]) == ("alpha", uid_of(1), SPEC["model"], "Running")
    assert answer.headers["etag"] == '"1"'


@pytest.mark.parametrize("name", ["delta", uid_of(4), "nothing"])
async def test_a_run_of_another_namespace_is_not_found(api: RestApi, name: str) -> None:
    answer = await api.client.get(f"/namespaces/team/runs/{name}", headers=api.user("ann", *RIGHTS))
    assert (answer.status_code, answer.json()["reason"]) == (404, "ObjectNotFound")


async def test_before_all_runs_are_listed_there_is_no_answer(api: RestApi) -> None:
    api.services.objects.runs._synced.clear()
    for path in ("/runs", "/namespaces/team/runs", "/namespaces/team/runs/alpha", "/namespaces"):
        answer = await api.client.get(path, headers=api.user("ann", *RIGHTS))
        assert (answer.status_code, answer.json()["reason"]) == (503, "ServerNotReady"), path


async def test_a_new_server_is_not_ready_before_it_has_listed_all_objects_or_waited_for_long(api: RestApi) -> None:
    assert api.services.objects.not_ready(age=0.0) is None
    api.services.objects.runs._synced.clear()
    assert api.services.objects.not_ready(age=LISTING_SECONDS - 0.1) == "reading rlruns"
    assert api.services.objects.not_ready(age=LISTING_SECONDS) is None, "pods need signatures, not lists"


async def test_configuration_has_defaults_and_toml(api: RestApi) -> None:
    answer = await api.client.get("/namespaces/team/runs/alpha/config", headers=api.user("ann", *RIGHTS))
    found = answer.json()
    assert found["spec"] == SPEC
    assert found["resolved"]["batchSize"] == 128
    assert loads(found["toml"]).spec.max_steps == SPEC["maxSteps"]
    assert "batch_size" not in tomllib.loads(found["toml"])


def test_configuration_of_a_spec_of_another_version_says_why_there_is_no_toml() -> None:
    found = config_of({**SPEC, "unheardOf": 1}, {})
    assert found.resolved is None
    assert found.toml is None
    assert "not valid for this version" in str(found.toml_problem)


def test_a_time_without_a_zone_is_one_in_utc() -> None:
    run = summarize_run(run_object("alpha", number=1))
    assert matches(run, RunFilter(since=datetime(2026, 1, 1, 0, 0, 1)))
    assert not matches(run, RunFilter(since=datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)))


def test_the_steps_of_a_clients_program_have_no_known_end() -> None:
    run = run_object("alpha", number=1, driver="Client", env=[], maxSteps=100)
    run["status"]["progress"] = {"step": 7}
    summary = summarize_run(run)
    assert (summary.driver, summary.environments, summary.step, summary.max_steps) == ("Client", [], 7, 0)
    assert summarize_run(run_object("beta", number=2)).driver == "Orchestrator"


@pytest.mark.parametrize(
    ("status", "why"),
    [(401, "Unauthorized"), (403, 'User "system:serviceaccount:rlrun:rlrun-server" cannot list resource "rlruns"')],
)
async def test_what_the_api_server_refuses_to_the_server_itself_is_no_refusal_of_the_user(
    status: int, why: str
) -> None:
    api, large = rest_api(), run_object("first")
    large["status"]["message"] = random.Random(0).randbytes(2 * MAX_OBJECT_BYTES).hex()
    api.add(large)
    api.cluster.answers["list rlruns in namespace team"] = [ApiError(status, "Refused", why)]
    user = api.user("ann", "list rlruns in team", "get rlruns in team")
    answer = await api.client.get("/namespaces/team/runs/first", headers=user)
    assert (answer.status_code, answer.json()["reason"]) == (503, "ApiServerUnavailable"), answer.text
    assert f"rlrun-server itself: {why}." in answer.json()["detail"]
