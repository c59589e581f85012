"""Deployment and deletion of artifacts, with the rights of the caller."""

from datetime import UTC, datetime

import pytest
from rlrun.constants import SERVER_FIELD_MANAGER
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import ordered_expiry

from tests.support.rest_api import RestApi, rest_api, run_object
from tests.unit.rlrun_server.rest.routes.test_artifacts import artifact

RIGHTS = [
    "list rlruns in team",
    "patch rladapters in team",
    "delete rladapters in team",
    "delete rlcheckpoints in team",
]
ADAPTER = "/namespaces/team/adapters/first-step-1"


@pytest.fixture
def api() -> RestApi:
    found = rest_api()
    for kind in ("RLCheckpoint", "RLAdapter"):
        found.add(artifact(kind, "first", 1), artifact(kind, "first", 4, namespace="secret"))
    return found


@pytest.mark.parametrize(("action", "deployed"), [("deploy", True), ("undeploy", False)])
async def test_an_adapter_is_deployed_by_the_caller(api: RestApi, action: str, deployed: bool) -> None:
    answer = await api.client.post(f"{ADAPTER}:{action}", headers=api.user("ann", *RIGHTS))
    assert answer.status_code == 200
    assert answer.json()["summary"]["deployed"] is deployed
    sent = api.cluster.requests[-1]
    assert sent.extra_headers["Authorization"] == "Bearer token-of-ann"
    assert sent.field_manager == SERVER_FIELD_MANAGER
    uid = answer.json()["summary"]["uid"]
    assert sent.body == {"metadata": {"uid": uid}, "spec": {"deployed": deployed}}
    known = api.services.objects.adapters.find("team", "first-step-1")
    assert known is not None
    assert known.summary.deployed is deployed


@pytest.mark.parametrize("kind", ["adapters", "checkpoints"])
async def test_an_artifact_is_deleted_by_the_caller(api: RestApi, kind: str) -> None:
    answer = await api.client.delete(f"/namespaces/team/{kind}/first-step-1", headers=api.user("ann", *RIGHTS))
    assert answer.status_code == 200
    sent = api.cluster.requests[-1]
    assert sent.body is not None
    assert sent.body["preconditions"] == {"uid": answer.json()["uid"]}
    assert ("RLAdapter" if kind == "adapters" else "RLCheckpoint", "team", "first-step-1") not in api.cluster.objects


@pytest.mark.parametrize("kind", ["adapters", "checkpoints"])
async def test_an_artifact_of_a_run_that_exists_is_left_to_retention(api: RestApi, kind: str) -> None:
    run = run_object("first")
    api.add({**run, "metadata": {**run["metadata"], "uid": "uid-of-first"}})
    answer = await api.client.delete(f"/namespaces/team/{kind}/first-step-1", headers=api.user("ann", *RIGHTS))
    assert answer.status_code == 200
    resource = "RLAdapter" if kind == "adapters" else "RLCheckpoint"
    changed = ordered_expiry(api.cluster.objects[resource, "team", "first-step-1"])
    assert changed is not None
    assert changed <= datetime.now(UTC)
    known = getattr(api.services.objects, kind).find("team", "first-step-1")
    assert known.summary.expires_at == changed


@pytest.mark.parametrize("has_run", [True, False])
async def test_a_deployed_adapter_is_not_deleted(api: RestApi, has_run: bool) -> None:
    api.add(artifact("RLAdapter", "first", 7, deployed=True))
    if has_run:
        run = run_object("first")
        api.add({**run, "metadata": {**run["metadata"], "uid": "uid-of-first"}})
    path, user = "/namespaces/team/adapters/first-step-7", api.user("ann", *RIGHTS)
    answer = await api.client.delete(path, headers=user)
    assert (answer.status_code, answer.json()["reason"]) == (409, "AdapterDeployed"), answer.text
    assert f"POST /rlrun/v1{path}:undeploy" in answer.json()["detail"]
    assert not api.cluster.requests
    await api.client.post(f"{path}:undeploy", headers=user)
    assert (await api.client.delete(path, headers=user)).status_code == 200


@pytest.mark.parametrize(
    "path", ["/namespaces/team/adapters/nothing:deploy", "/namespaces/team/adapters/first-step-4:deploy"]
)
async def test_an_adapter_of_another_namespace_is_not_found(api: RestApi, path: str) -> None:
    answer = await api.client.post(path, headers=api.user("ann", *RIGHTS))
    assert (answer.status_code, answer.json()["reason"]) == (404, "ObjectNotFound")


@pytest.mark.parametrize(("method", "path"), [("POST", f"{ADAPTER}:deploy"), ("DELETE", ADAPTER)])
async def test_the_right_is_needed(api: RestApi, method: str, path: str) -> None:
    answer = await api.client.request(method, path, headers=api.user("eve", "list rlruns in team"))
    assert (answer.status_code, answer.json()["reason"]) == (403, "AccessForbidden")
    assert api.cluster.requests == []


async def test_what_the_api_server_refuses_is_told(api: RestApi) -> None:
    api.cluster.answers["change RLAdapter team/first-step-1"] = [
        ApiError(403, "Forbidden", "no right to patch rladapters")
    ]
    answer = await api.client.post(f"{ADAPTER}:deploy", headers=api.user("ann", *RIGHTS))
    assert answer.status_code == 403
    assert "No right to patch rladapters" in answer.json()["detail"]
