"""Models, checkpoints and adapters for hosted clients."""

from typing import Any

import pytest
from rlrun_server.hosted_api.objects.artifact_objects import adapter_of

from tests.support.hosted_api import MODEL, HostedApi, artifact_object, hosted_api, model_object
from tests.support.rest_api import run_object


@pytest.fixture
async def api() -> HostedApi:
    found = hosted_api()
    found.rest.add(
        model_object(),
        run_object("first", number=1, name="My [run]"),
        *(artifact_object("RLCheckpoint", f"c{n}", n) for n in (10, 20, 30)),
        artifact_object("RLCheckpoint", "leaving", 5, phase="Deleting"),
        artifact_object("RLCheckpoint", "of-another", 6, run=2),
        *(artifact_object("RLAdapter", f"a{n}", n) for n in (20, 31, 32)),
    )
    await found.key()
    return found


async def test_models_have_no_invented_prices(api: HostedApi) -> None:
    assert (await api.client.get("/rft/models")).json() == {"models": [{"name": MODEL, "atCapacity": False}]}
    assert (await api.client.get("/rft/deployable-models")).json() == {"models": [MODEL]}


async def test_checkpoints_of_a_run(api: HostedApi) -> None:
    found = (await api.client.get("/rft/runs/first/checkpoints")).json()["checkpoints"]
    assert [(row["id"], row["step"], row["status"]) for row in found] == [
        ("c30", 30, "READY"), ("c20", 20, "READY"), ("c10", 10, "READY"),
    ]  # fmt: skip
    assert all(row["rftRunId"] == "first" and row["createdAt"] and row["storageUrl"] for row in found)
    failed = await api.client.get("/rft/runs/first/checkpoints", params={"status_filter": "FAILED"})
    assert failed.json() == {"checkpoints": []}


async def test_adapters_are_paged(api: HostedApi) -> None:
    found = (await api.client.get("/rft/adapters", params={"limit": 2, "offset": 1})).json()
    assert ([row["id"] for row in found["adapters"]], found["total"]) == (["a31", "a20"], 3)
    assert found["adapters"][0]["displayName"] == "My (run)"


async def test_deploy_and_unload_answer_at_once(api: HostedApi) -> None:
    deployed = (await api.client.post("/rft/adapters/a20/deploy")).json()["adapter"]
    assert (deployed["deploymentStatus"], deployed["status"]) == ("DEPLOYING", "READY")
    assert api.rest.cluster.objects["RLAdapter", "team", "a20"]["spec"]["deployed"] is True
    unloaded = (await api.client.post("/rft/adapters/a20/unload")).json()["adapter"]
    assert unloaded["deploymentStatus"] == "NOT_DEPLOYED"
    assert (await api.client.post("/rft/adapters/none/deploy")).status_code == 404


@pytest.mark.parametrize("reference", ["c20", "cp_team.c20", "team/c20"])
async def test_a_checkpoint_deploys_the_adapter_of_its_step(api: HostedApi, reference: str) -> None:
    answer = await api.client.post(f"/rft/checkpoints/{reference.replace('/', '%2F')}/deploy")
    if "/" in reference:
        assert answer.status_code == 404
        return
    assert (answer.json()["adapter"]["id"], answer.json()["adapter"]["deploymentStatus"]) == ("a20", "DEPLOYING")


async def test_a_checkpoint_without_an_adapter_says_which_there_are(api: HostedApi) -> None:
    answer = await api.client.post("/rft/checkpoints/c10/deploy")
    assert answer.status_code == 409
    assert "no ready adapter for step 10" in answer.json()["detail"]
    assert "ready adapters for steps 20, 31, 32: deploy one of them, or set adapters." in answer.json()["detail"]
    without = await api.client.post("/rft/checkpoints/of-another/deploy")
    assert (without.status_code, "It has no ready adapters: set adapters." in without.json()["detail"]) == (409, True)
    assert (await api.client.post("/rft/checkpoints/cp_other.c20/deploy")).status_code == 404


@pytest.mark.parametrize(
    ("deployed", "state", "word"),
    [(False, None, "NOT_DEPLOYED"), (True, None, "DEPLOYING"), (True, "NotDeployed", "DEPLOYING"),
     (True, "Deployed", "DEPLOYED"), (False, "Deployed", "UNLOADING"), (False, "Deploying", "UNLOADING"),
     (True, "DeployFailed", "DEPLOY_FAILED"), (False, "UnloadFailed", "UNLOAD_FAILED"), (False, "odd", "NOT_DEPLOYED")],
)  # fmt: skip
def test_states_of_deployments(deployed: bool, state: str | None, word: str) -> None:
    status: dict[str, Any] = {"deploymentState": state} if state else {}
    adapter = artifact_object("RLAdapter", "a", 1, deployed=deployed, deploymentMessage="[why]", **status)
    found = adapter_of(adapter, "user", None)
    assert found["deploymentStatus"] == word
    assert found["deploymentError"] == ("(why)" if word.endswith("FAILED") else None)
