"""Routes of runs for hosted clients: pages, creation with secrets, stop, restart, delete."""

import asyncio
import base64
import contextlib
from typing import Any

import pytest
from httpx import Response
from rlrun.kube.errors import TIMEOUT, ApiError
from rlrun.kube.requests import Verb
from rlrun.storage.layout import S3Uri
from rlrun_server.hosted_api.environments import environment_checks
from rlrun_server.hosted_api.environments.environment_packages import EnvironmentPackages

from tests.support.fake_cluster import fail_creations
from tests.support.hosted_api import MODEL, HostedApi, artifact_object, hosted_api, model_object
from tests.support.rest_api import BUCKET, run_object

BODY: dict[str, Any] = {
    "model": {"name": MODEL},
    "environments": [{"id": "team/reverse"}],
    "rollouts_per_example": 8,
    "max_steps": 3,
    "batch_size": 16,
    "secrets": [],
}


@pytest.fixture
async def api() -> HostedApi:
    found = hosted_api()
    found.rest.add(model_object(), *(run_object(f"run-{n}", number=n) for n in range(1, 6)))
    found.rest.add(run_object("foreign", "other", 9))
    wheel = S3Uri(BUCKET, "prefix/environments/team/reverse/1.0/reverse-1.0-py3-none-any.whl")
    found.store.put_bytes(wheel, b"wheel")
    await found.key()
    return found


def writes(api: HostedApi) -> list[str]:
    return [str(r) for r in api.rest.cluster.requests if r.verb not in (Verb.GET, Verb.LIST)]


async def create(api: HostedApi, **more: Any) -> Response:
    return await api.client.post("/rft/runs", json={**BODY, **more})


async def test_the_older_client_gets_all_runs(api: HostedApi) -> None:
    answer = (await api.client.get("/rft/runs")).json()
    assert list(answer) == ["runs"]
    assert [run["id"] for run in answer["runs"]] == ["run-5", "run-4", "run-3", "run-2", "run-1"]
    assert {run["seqLen"] for run in answer["runs"]} == {4096}


async def test_lists_have_no_settings_of_environments_which_may_be_large(api: HostedApi) -> None:
    entry = {"id": "team/reverse", "args": {"text": "a" * 100_000}, "taskset": {"n": 1}, "harness": {"n": 1}}
    api.rest.add(run_object("large", number=10, env=[entry], eval={"env": [entry], "interval": 5}))
    for answer in (await api.client.get("/rft/runs"), await api.client.get("/rft/runs", params={"page": 1})):
        assert len(answer.content) < 20_000
        large = answer.json()["runs"][0]
        assert large["environments"] == [{"slug": "team/reverse", "id": "team/reverse"}]
        assert large["evalConfig"] == {"env": [{"id": "team/reverse"}], "interval": 5}
    one = (await api.client.get("/rft/runs/large")).json()["run"]
    assert one["environments"][0]["args"] == one["evalConfig"]["env"][0]["args"] == entry["args"]


async def test_the_newer_client_gets_pages(api: HostedApi) -> None:
    answer = (await api.client.get("/rft/runs", params={"page": 2, "limit": 2, "mine": "true"})).json()
    assert [run["id"] for run in answer.pop("runs")] == ["run-3", "run-2"]
    assert answer == {"total": 5, "page": 2, "limit": 2, "total_pages": 3}
    beyond = (await api.client.get("/rft/runs", params={"page": 9})).json()
    assert (beyond["runs"], beyond["total"]) == ([], 5)


async def test_a_run_is_created_with_its_secret(api: HostedApi) -> None:
    answer = await create(api, name="My Run", secrets=[{"key": "TOKEN", "value": "hidden"}], team_id="team")
    assert answer.status_code == 200, answer.text
    assert "hidden" not in answer.text
    name = answer.json()["run"]["id"]
    assert name.startswith("my-run-")
    assert writes(api) == [
        f"create Secret team/{name}-env", f"create RLRun team/{name}", f"change Secret team/{name}-env",
    ]  # fmt: skip
    run = api.rest.cluster.objects["RLRun", "team", name]
    secret = api.rest.cluster.objects["Secret", "team", f"{name}-env"]
    assert run["spec"]["envFrom"] == [{"secretRef": {"name": f"{name}-env"}}]
    assert (run["spec"]["maxSteps"], run["spec"]["env"]) == (3, [{"id": "team/reverse"}])
    assert secret["data"] == {"TOKEN": base64.b64encode(b"hidden").decode()}
    assert secret["metadata"]["ownerReferences"][0]["uid"] == run["metadata"]["uid"]
    assert (await api.client.get(f"/rft/runs/{name}")).status_code == 200, "found before the watch tells of it"


async def test_an_environment_without_an_owner_is_one_of_the_namespace(api: HostedApi) -> None:
    name = (await create(api, environments=[{"id": "reverse@1.0"}])).json()["run"]["id"]
    assert api.rest.cluster.objects["RLRun", "team", name]["spec"]["env"] == [{"id": "team/reverse", "version": "1.0"}]


async def test_a_run_that_is_refused_leaves_no_secret(api: HostedApi) -> None:
    fail_creations(api.rest.cluster, "RLRun", ApiError(403, "Forbidden", "quota [exceeded]"), are_stored=False)
    answer = await create(api, secrets=[{"key": "TOKEN", "value": "hidden"}])
    detail = "The API server refused the request: Quota (exceeded)."
    assert (answer.status_code, answer.json()["detail"]) == (403, detail)
    assert not [key for key in api.rest.cluster.objects if key[0] == "Secret"]


@pytest.mark.parametrize("failure", [ApiError(0, TIMEOUT, "no answer"), asyncio.CancelledError()])
async def test_the_secret_of_a_run_that_was_stored_without_an_answer_stays(
    api: HostedApi, failure: BaseException
) -> None:
    fail_creations(api.rest.cluster, "RLRun", failure)
    with contextlib.suppress(asyncio.CancelledError):
        answer = await create(api, name="mine", secrets=[{"key": "TOKEN", "value": "hidden"}])
        assert answer.status_code == 503
    (secret,) = api.rest.cluster.all("Secret")
    run = next(run for run in api.rest.cluster.all("RLRun") if run["metadata"]["name"].startswith("mine-"))
    assert secret["metadata"]["ownerReferences"][0]["uid"] == run["metadata"]["uid"]


async def test_a_run_that_was_not_stored_leaves_no_secret(api: HostedApi) -> None:
    fail_creations(api.rest.cluster, "RLRun", ApiError(0, TIMEOUT, "no answer"), are_stored=False)
    answer = await create(api, secrets=[{"key": "TOKEN", "value": "hidden"}])
    assert answer.status_code == 503
    assert not api.rest.cluster.all("Secret")


@pytest.mark.parametrize(
    ("more", "location", "said"),
    [
        ({"model": {"name": "no/such"}}, ["body", "model", "name"], MODEL),
        (
            {"environments": [{"id": "team/reverse"}, {"id": "team/none"}]},
            ["body", "environments", 1, "id"],
            "env push",
        ),
        (
            {"environments": [{"id": "team/reverse", "version": "2.0"}]},
            ["body", "environments", 0, "version"],
            "versions of team/reverse: 1.0",
        ),
        (
            {"environments": [{"id": "team/Revers"}]},
            ["body", "environments", 0, "id"],
            "Similar packages: team/rev",
        ),
        ({"eval": {"environments": [{"id": "x/none"}]}}, ["body", "eval", "environments", 0, "id"], "env push"),
        ({"checkpoint_id": "none"}, ["body", "checkpoint_id"], "does not exist"),
        ({"checkpoint_id": "cp_team.broken"}, ["body", "checkpoint_id"], "is FAILED, not READY"),
        ({"checkpoint_id": "strange"}, ["body", "checkpoint_id"], "different model"),
        ({"max_steps": -1}, ["body", "max_steps"], "greater"),
        ({"secrets": [{"key": "1", "value": "hidden"}]}, ["body", "secrets", 0, "key"], "letters"),
    ],
    ids=str,
)
async def test_what_a_run_names_must_exist(
    api: HostedApi, more: dict[str, Any], location: list[Any], said: str
) -> None:
    strange = artifact_object("RLCheckpoint", "strange", 2)
    strange["spec"]["model"] = "another/model"
    api.rest.add(artifact_object("RLCheckpoint", "broken", 1, phase="Failed"), strange)
    answer = await create(api, **more)
    assert answer.status_code == 422, answer.text
    (problem,) = answer.json()["detail"]
    assert (problem["loc"], said in problem["msg"]) == (location, True), problem
    assert "hidden" not in answer.text
    assert not writes(api)


async def test_a_run_for_another_team_is_not_created(api: HostedApi) -> None:
    answer = await create(api, team_id="other")
    assert (answer.status_code, writes(api)) == (404, [])


async def test_stop(api: HostedApi) -> None:
    answer = await api.client.put("/rft/runs/run-1/stop")
    assert (answer.status_code, answer.json()["run"]["status"]) == (200, "RUNNING")
    assert api.rest.cluster.objects["RLRun", "team", "run-1"]["spec"]["stop"] is True
    api.rest.add(run_object("ended", number=20, phase="Completed"))
    answer = await api.client.put("/rft/runs/ended/stop")
    assert (answer.json()["run"]["status"], len(writes(api))) == ("COMPLETED", 1)


async def test_a_restart_is_one_request(api: HostedApi) -> None:
    pods = [
        {"kind": "Pod", "metadata": {"name": f"p{n}", "namespace": "team", "labels": {"rlrun.dev/run": run}}}
        for n, run in enumerate(["run-1", "run-2"])
    ]
    for pod in pods:
        api.rest.cluster.put(pod)
    sent: list[Any] = []

    async def delete(request: Any) -> Any:
        sent.append(request)
        return {"kind": "PodList", "items": []}

    api.rest.cluster.delete = delete  # type: ignore[method-assign]
    answer = await api.client.put("/rft/runs/run-1/restart")
    assert answer.json()["run"]["id"] == "run-1"
    (request,) = sent
    assert (request.path, request.query) == ("/api/v1/namespaces/team/pods", {"labelSelector": "rlrun.dev/run=run-1"})


@pytest.mark.parametrize(
    ("run", "state"),
    [
        ({"phase": "Pending"}, "Pending"),
        ({"phase": "Completed"}, "Completed"),
        ({"stop": True}, "stopping"),
        ({"suspend": True}, "pausing"),
    ],
    ids=str,
)
async def test_only_a_running_run_is_restarted(api: HostedApi, run: dict[str, Any], state: str) -> None:
    api.rest.add(run_object("tired", number=30, **run))
    answer = await api.client.put("/rft/runs/tired/restart")
    assert (answer.status_code, writes(api)) == (409, [])
    assert answer.json()["detail"] == f"Run tired is {state}. Only a run that is RUNNING can be restarted."


@pytest.mark.parametrize(("method", "path"), [("PUT", "restart"), ("GET", "env-servers")])
async def test_rights_on_pods_show_no_runs(api: HostedApi, method: str, path: str) -> None:
    await api.key("pods", "list rlruns in pods", "deletecollection pods in pods", "list pods in pods")
    answer = await api.client.request(method, f"/rft/runs/run-1/{path}")
    assert (answer.status_code, "may not get rlruns" in answer.json()["detail"]) == (403, True)


async def test_delete(api: HostedApi) -> None:
    answer = await api.client.delete("/rft/runs/run-1")
    assert (answer.status_code, answer.content) == (204, b"")
    assert ("RLRun", "team", "run-1") not in api.rest.cluster.objects


@pytest.mark.parametrize("path", ["", "/metrics", "/checkpoints", "/logs", "/progress", "/env-servers"])
async def test_runs_of_others_do_not_exist(api: HostedApi, path: str) -> None:
    answer = await api.client.get(f"/rft/runs/foreign{path}")
    assert (answer.status_code, "does not exist" in answer.json()["detail"]) == (404, True)


async def test_components(api: HostedApi) -> None:
    labels = {"rlrun.dev/run": "run-1", "rlrun.dev/role": "environment", "rlrun.dev/component": "env-0"}
    api.rest.cluster.put({"kind": "Pod", "metadata": {"name": "pod", "namespace": "team", "labels": labels}})
    answer = await api.client.get("/rft/runs/run-1/env-servers")
    assert answer.json() == {
        "env_servers": [{"pod_name": "pod", "status": "PENDING", "env_name": "reverse", "env_index": 0}]
    }


async def test_environments_that_s3_does_not_show_in_time_are_left_to_the_operator(
    api: HostedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> list[Any]:
        await asyncio.sleep(60)
        return []

    monkeypatch.setattr(environment_checks, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(EnvironmentPackages, "versions", never)
    async with asyncio.timeout(20):
        created = await create(api, environments=[{"id": f"team/slow-{n}"} for n in range(3)])
    assert created.status_code == 200


async def test_environments_are_found_in_any_spelling(api: HostedApi) -> None:
    answer = await create(api, environments=[{"id": "team/REVERSE", "version": "1.0.0"}])
    assert answer.status_code == 200, answer.text
