"""The life of a pool and of the adapters in it, reconcile by reconcile."""

import base64

import pytest
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.protocol import signed_text
from rlrun.protocol.problem import Problem
from rlrun.protocol.serving import DesiredAdapters
from rlrun.protocol.storage_access import StorageGrant, StorageRole
from rlrun_operator.resources.serving_pool import PoolIdentity
from rlrun_operator.serving import planner
from rlrun_operator.serving.reconciler import find_pools, key_of

from tests.support.cluster_objects import OUT_OF_DISK, STORAGE_KEY, evict, source_secret, terminated
from tests.support.expectations import present
from tests.support.fake_cluster import Crash, copied
from tests.support.serving_pools import KEY, Pools, adapter_object

ALL = ["ConfigMap", "Deployment", "NetworkPolicy", "Secret", "Secret", "Service", "ServiceAccount"]
NAME = "tiny/model:one"


async def test_the_first_deployed_adapter_gets_a_pool(pools: Pools) -> None:
    again = await pools.put(adapter_object())
    assert sorted(pools.objects) == ALL
    assert pools.state() == "Deploying"
    assert present(again) <= 2
    pools.start_pods(ready=False)
    await pools.reconcile()
    assert "Waiting for an engine" in pools.status()["deploymentMessage"]
    for pod in pools.cluster.all("Pod"):
        pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    await pools.reconcile()
    status = pools.status()
    assert (status["deploymentState"], status["deployedAt"]) == ("Deployed", "2026-01-01T00:00:00Z")
    assert status["deploymentModel"] == NAME
    assert status["deploymentUrl"] == f"http://{KEY.name}.team.svc:8000/v1"
    assert status["deploymentSecret"] == f"{KEY.name}-api-key"
    assert "deploymentMessage" not in status
    assert (status["phase"], status["sizeBytes"]) == ("Ready", 5), "the rest of the status is not the pool's"
    assert [e["reason"] for e in pools.cluster.events] == ["AdapterDeployed"]
    assert pools.cluster.events[0]["involvedObject"]["kind"] == "RLAdapter"


async def test_a_status_that_was_not_written_has_no_event(pools: Pools) -> None:
    adapter = adapter_object()
    await pools.put(adapter)
    pools.start_pods()
    written = f"apply the status of RLAdapter team/{adapter['metadata']['name']}"
    pools.cluster.answers[written] = [ApiError(409, "Conflict", "the object has been modified")]
    await pools.reconcile()
    assert pools.cluster.events == []
    del pools.cluster.answers[written]
    await pools.reconcile()
    assert [e["reason"] for e in pools.cluster.events] == ["AdapterDeployed"]


async def test_a_pool_is_observed_with_the_informers_and_its_adapters_are_read(pools: Pools) -> None:
    pools.follow()
    await pools.deploy(adapter_object())
    assert pools.state() == "Deployed"
    pools.cluster.requests.clear()
    await pools.reconcile()
    secrets = [f"get Secret team/{KEY.token_secret}", f"get Secret team/{KEY.api_key_secret}"]
    found = [call for call in pools.cluster.calls if call != "get Secret rlrun-system/s3"]
    assert found == ["list rladapters in namespace team", *secrets]
    pools.change(deployed=False)
    await pools.reconcile(2)
    assert pools.objects == []


async def test_adapters_beyond_those_that_a_pool_serves_are_refused_and_deployed_ones_stay(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "MAX_SERVED", 1)
    await pools.deploy(adapter_object("one"))
    await pools.put(adapter_object("earlier-name"))
    await pools.reconcile()
    assert pools.state("one") == "Deployed"
    assert pools.state("earlier-name") == "DeployFailed"
    assert "2 adapters of this model should be served" in pools.status("earlier-name")["deploymentMessage"]


async def test_an_up_to_date_pool_is_not_written_again(pools: Pools) -> None:
    await pools.deploy(adapter_object())
    writes = pools.cluster.writes
    again = await pools.reconcile(3)
    assert (pools.cluster.writes, pools.sidecars.told) == (writes, [])
    assert present(again) > 2


async def test_the_users_key_stays_until_its_secret_is_deleted(pools: Pools) -> None:
    name = f"{KEY.name}-api-key"

    def key() -> str:
        return str((pools.cluster.find("Secret", name, "team") or {})["data"]["OPENAI_API_KEY"])

    await pools.deploy(adapter_object())
    first, deployment = key(), pools.cluster.all("Deployment")[0]
    await pools.reconcile(2)
    assert (key(), pools.cluster.all("Deployment")[0]) == (first, deployment)
    pools.cluster.request_deletion(pools.cluster.find("Secret", name, "team") or {})
    await pools.reconcile(2)
    assert key() != first
    (changed,) = pools.cluster.all("Deployment")
    assert changed["spec"]["template"] != deployment["spec"]["template"], "variables do not follow a Secret"


@pytest.mark.parametrize("value", ["", "!", "/w=="], ids=["empty", "no base64", "no text"])
async def test_a_users_key_that_cannot_be_used_is_replaced(pools: Pools, value: str) -> None:
    await pools.deploy(adapter_object())
    secret = copied(pools.cluster.find("Secret", f"{KEY.name}-api-key", "team") or {})
    await pools.put({**secret, "data": {"OPENAI_API_KEY": value}})
    found = pools.cluster.find("Secret", f"{KEY.name}-api-key", "team") or {}
    assert len(base64.b64decode(found["data"]["OPENAI_API_KEY"])) == 64


async def test_no_pool_exists_without_a_deployed_adapter(pools: Pools) -> None:
    assert await pools.put(adapter_object(deployed=False)) is None
    assert (pools.objects, pools.cluster.writes) == ([], 0)


async def test_a_second_adapter_is_ordered_from_the_pods_at_once(pools: Pools) -> None:
    await pools.deploy(adapter_object())
    deployment = pools.cluster.all("Deployment")[0]
    pools.cluster.put(adapter_object("two"))
    pools.sidecars.slow.add("tiny/model:two")
    await pools.reconcile()
    assert [[a.name for a in order.adapters] for order in pools.sidecars.told] == [[NAME, "tiny/model:two"]]
    await pools.reconcile()
    assert (pools.state(), pools.state("two")) == ("Deployed", "Deploying")
    pools.sidecars.slow.clear()
    await pools.reconcile()
    assert pools.state("two") == "Deployed"
    assert len(pools.sidecars.told) == 1
    assert pools.cluster.all("Deployment")[0] == deployment, "an adapter more restarts nothing"


async def test_an_adapter_is_deployed_when_every_ready_replica_has_it(pools: Pools) -> None:
    pools.settings = pools.settings.model_copy(
        update={"serving": pools.settings.serving.model_copy(update={"replicas": 2})}
    )
    await pools.deploy(adapter_object())
    first, second = (pod["metadata"]["name"] for pod in pools.cluster.all("Pod"))
    pools.sidecars.orders[second] = pools.sidecars.orders[first].model_copy(update={"adapters": []})
    await pools.put({**adapter_object(), "metadata": {**adapter_object()["metadata"], "name": "two"}})
    assert pools.state() == "Deploying"
    await pools.reconcile()
    assert (pools.state(), pools.state("two")) == ("Deployed", "Deployed")


async def test_undeploying_one_of_two_unloads_it_and_the_pool_stays(pools: Pools) -> None:
    await pools.deploy(adapter_object(), adapter_object("two"))
    pools.change(deployed=False)
    pools.sidecars.stuck.add(NAME)
    assert await pools.reach() == "Unloading"
    assert await pools.reach() == "UnloadFailed"
    assert "delete pod" in pools.status()["deploymentMessage"]
    pools.sidecars.stuck.clear()
    await pools.reconcile()
    assert (pools.state(), pools.state("two")) == ("NotDeployed", "Deployed")
    assert "deploymentUrl" not in pools.status()
    assert pools.status()["deployedAt"] == "2026-01-01T00:00:00Z", "when it was last deployed"
    assert sorted(pools.objects) == ALL


async def test_the_pool_is_deleted_with_its_last_adapter(pools: Pools) -> None:
    await pools.deploy(adapter_object())
    pools.change(deployed=False)
    await pools.reconcile()
    assert pools.objects == []
    assert pools.state() == "Unloading"
    for pod in pools.cluster.all("Pod"):
        pools.cluster.request_deletion(pod)
    assert await pools.reconcile() is None
    assert pools.state() == "NotDeployed"
    assert pools.cluster.events[-1]["reason"] == "AdapterUndeployed"


async def test_a_deleted_adapter_is_undeployed(pools: Pools) -> None:
    await pools.deploy(adapter_object(), adapter_object("two"))
    pools.cluster.request_deletion(pools.cluster.held("RLAdapter", "two"))
    await pools.reconcile()
    assert [a.name for a in pools.sidecars.told[-1].adapters] == [NAME]


async def test_adapters_are_served_though_their_run_is_gone(pools: Pools) -> None:
    assert pools.cluster.all("RLRun") == []
    await pools.deploy(adapter_object())
    assert pools.state() == "Deployed"


@pytest.mark.parametrize(
    ("phase", "message", "words"),
    [("Failed", "the files are gone", "is Failed, not Ready (the files are gone)"), (None, None, "is Pending")],
)
async def test_an_adapter_that_is_not_ready_fails(
    pools: Pools, phase: str | None, message: str | None, words: str
) -> None:
    await pools.put(adapter_object(status={"phase": phase, "message": message}))
    assert (pools.state(), pools.objects) == ("DeployFailed", [])
    assert pools.status()["deploymentMessage"].startswith("AdapterNotReady: ")
    assert words in pools.status()["deploymentMessage"]
    assert pools.cluster.events[0]["type"] == "Warning"
    found = pools.cluster.held("RLAdapter", "one")
    await pools.put({**found, "status": {**found["status"], "phase": "Ready"}})
    assert pools.state() == "Deploying"


async def test_sidecars_get_the_digest_that_an_adapter_had_when_it_became_ready(pools: Pools) -> None:
    await pools.deploy(adapter_object())
    found = pools.cluster.held("RLAdapter", "one")
    await pools.put({**found, "status": {**found["status"], "digest": "a" * 64}})
    assert [[a.digest for a in order.adapters] for order in pools.sidecars.told] == [["a" * 64]]


async def test_an_adapter_that_was_changed_is_not_deployed(pools: Pools) -> None:
    condition = {"type": "Verified", "status": "False", "reason": "ArtifactChanged", "message": "other files."}
    await pools.put(adapter_object(status={"phase": "Failed", "message": "other files.", "conditions": [condition]}))
    assert (pools.state(), pools.objects) == ("DeployFailed", [])
    assert pools.status()["deploymentMessage"] == "ArtifactChanged: other files. Set `spec.deployed` to false."


async def test_a_deployed_adapter_stays_deployed_without_its_files(pools: Pools) -> None:
    await pools.deploy(adapter_object())
    found = pools.cluster.held("RLAdapter", "one")
    await pools.put({**found, "status": {**found["status"], "phase": "Failed"}})
    assert (pools.state(), pools.sidecars.told) == ("Deployed", [])


async def test_a_deployment_fails_without_its_model_and_continues_when_it_returns(pools: Pools) -> None:
    (model,) = pools.cluster.all("RLModel")
    pools.cluster.request_deletion(model)
    assert await pools.put(adapter_object()) is not None, "it is looked at again"
    assert (pools.state(), pools.objects) == ("DeployFailed", [])
    assert "ModelNotFound: " in pools.status()["deploymentMessage"]
    del model["metadata"]["deletionTimestamp"]
    await pools.put(model)
    assert pools.state() == "Deploying"


async def test_a_pool_that_serves_outlives_its_models_entry_and_still_takes_orders(pools: Pools) -> None:
    await pools.deploy(adapter_object())
    pools.cluster.request_deletion(pools.cluster.all("RLModel")[0])
    await pools.put(adapter_object("two"), 2)
    assert sorted(pools.objects) == ALL
    assert (pools.state(), pools.state("two")) == ("Deployed", "Deployed")


async def test_missing_credentials_fail_only_what_is_not_served_yet(pools: Pools) -> None:
    await pools.deploy(adapter_object())
    pools.cluster.request_deletion(pools.cluster.find("Secret", "s3", "rlrun-system") or {})
    assert await pools.reach() == "Deployed"
    for obj in pools.cluster.all("Deployment"):
        pools.cluster.request_deletion(obj)
    await pools.put(adapter_object("two"))
    assert "S3CredentialsMissing" in pools.status("two")["deploymentMessage"]


async def test_new_credentials_of_the_platform_change_nothing(pools: Pools) -> None:
    await pools.deploy(adapter_object())
    before = [pools.cluster.all(kind) for kind in ("Deployment", "ConfigMap")]
    await pools.put(source_secret(AWS_ACCESS_KEY_ID="new"))
    assert [pools.cluster.all(kind) for kind in ("Deployment", "ConfigMap")] == before


async def test_the_order_allows_to_read_its_adapters_and_no_others(pools: Pools) -> None:
    await pools.deploy(adapter_object())
    (config,) = pools.cluster.all("ConfigMap")
    order = DesiredAdapters.model_validate_json(config["data"]["order.json"])
    grant = present(signed_text.verify(order.grant, [STORAGE_KEY], StorageGrant))
    assert (grant.namespace, grant.owner, grant.role) == (KEY.namespace, KEY.name, StorageRole.serving)
    assert (grant.folder, grant.readable) == ("", [adapter.uri for adapter in order.adapters])


async def test_sidecar_problem_becomes_the_status_of_the_adapter(pools: Pools) -> None:
    pools.sidecars.problems[NAME] = Problem(reason="AdapterRankTooHigh", message="rank 64: raise lora.rank")
    await pools.deploy(adapter_object(), adapter_object("two"))
    assert (pools.state(), pools.state("two")) == ("DeployFailed", "Deployed")
    assert pools.status()["deploymentMessage"] == "AdapterRankTooHigh: rank 64: raise lora.rank"
    pools.sidecars.problems.clear()
    assert await pools.reach() == "Deployed"
    assert "deploymentMessage" not in pools.status()


async def test_pods_that_cannot_start_say_why(pools: Pools) -> None:
    await pools.put(adapter_object())
    pools.start_pods(ready=False)
    (pod,) = pools.cluster.all("Pod")
    pods_status = pod["status"]
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU."}
    pods_status["conditions"].append(unscheduled)
    assert await pools.reach() == "Deploying"
    expected = "Unschedulable: serving: no node can run the pod: no GPU."
    assert pools.status()["deploymentMessage"].startswith(expected)
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    pods_status["containerStatuses"][0] |= {"state": waiting, "lastState": terminated(1, "OOMKilled")}
    assert await pools.reach() == "DeployFailed"
    assert "raise inference.resources.limits.memory" in pools.status()["deploymentMessage"]


async def test_an_engine_that_fills_its_disk_says_so_while_another_starts(pools: Pools) -> None:
    await pools.put(adapter_object())
    pools.start_pods(ready=False)
    (pod,) = pools.cluster.all("Pod")
    del pools.cluster.objects["Pod", "team", pod["metadata"]["name"]]
    pod["metadata"]["name"] += "-evicted"
    pools.cluster.put(evict(pod, OUT_OF_DISK[1]))
    pools.start_pods(ready=False)
    assert await pools.reach() == "DeployFailed"
    assert pools.status()["deploymentMessage"].startswith("InferenceOutOfDisk: serving: the pod exceeded its")


async def test_a_pool_that_never_gets_ready_fails_at_its_deadline(pools: Pools) -> None:
    await pools.put(adapter_object())
    (deployment,) = pools.cluster.all("Deployment")
    reason = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    await pools.put({**deployment, "status": {"conditions": [reason]}})
    assert pools.state() == "DeployFailed"
    assert "PoolNotReady" in pools.status()["deploymentMessage"]


async def test_refused_pods_of_a_pool_are_named(pools: Pools) -> None:
    await pools.put(adapter_object())
    (deployment,) = pools.cluster.all("Deployment")
    words = 'pods "x-7k2p" is forbidden: exceeded quota: gpus'
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": words}
    await pools.put({**deployment, "status": {"conditions": [failure]}})
    assert pools.state() == "DeployFailed"
    assert "exceeded quota: gpus" in pools.status()["deploymentMessage"]


async def test_a_deployed_adapter_stays_deployed_while_ready_sidecars_are_silent(pools: Pools) -> None:
    await pools.deploy(adapter_object())
    pools.sidecars.silent = True
    assert await pools.reach() == "Deployed"
    pools.start_pods()
    for pod in pools.cluster.all("Pod"):
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    assert await pools.reach() == "Deploying"


async def test_a_changed_model_is_a_changed_pool(pools: Pools) -> None:
    await pools.deploy(adapter_object())
    (model,) = pools.cluster.all("RLModel")
    await pools.put({**model, "spec": {**model["spec"], "lora": {"rank": 64}}})
    args = pools.cluster.all("Deployment")[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("--max-lora-rank") + 1] == "64"


async def test_a_pool_object_refused_by_the_api_server_is_reported(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(obj: object) -> None:
        raise ApiError(403, "Forbidden", "exceeded quota: services")

    async def put_while_refused(adapter: Obj) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(pools.cluster, "apply", refuse)
            with pytest.raises(ApiError):
                await pools.put(adapter)

    await put_while_refused(adapter_object())
    message = pools.status()["deploymentMessage"]
    assert message.startswith("PoolRefused: The API server refused ServiceAccount team/rlserve-")
    assert "exceeded quota: services" in message
    assert await pools.reach() == "Deploying"
    pools.start_pods()
    await pools.reconcile()
    await put_while_refused(adapter_object("two"))
    assert (pools.state(), pools.state("two")) == ("Deployed", "DeployFailed")


@pytest.mark.parametrize("after", range(9))
async def test_an_operator_that_dies_at_any_write_leaves_what_the_next_one_finishes(pools: Pools, after: int) -> None:
    pools.cluster.put(adapter_object())
    pools.cluster.crash_after = after
    try:
        await pools.reconcile()
        assert after >= 7, "the last writes are a status and an Event"
    except Crash:
        pass
    pools.change(deployed=False)
    pools.cluster.crash_after = None
    found = await find_pools(pools.cluster.kube, [])
    assert found == ({KEY} if pools.objects or pools.state() != "NotDeployed" else set())
    for key in found:
        await pools.reconcile(2, key)
    assert (pools.state(), pools.objects) == ("NotDeployed", [])


async def test_pools_are_found_by_what_is_deployed_and_by_what_is_there(pools: Pools) -> None:
    pools.cluster.put(adapter_object())
    pools.cluster.put(adapter_object("never", deployed=False))
    assert await find_pools(pools.cluster.kube, []) == {KEY}
    assert await find_pools(pools.cluster.kube, ["elsewhere"]) == set()
    await pools.reconcile()
    pools.cluster.objects.pop(("RLAdapter", "team", "one"))
    assert await find_pools(pools.cluster.kube, []) == {KEY}
    await pools.reconcile()
    assert (pools.objects, await find_pools(pools.cluster.kube, [])) == ([], set())


def test_events_lead_to_their_pool() -> None:
    assert key_of(adapter_object()) == PoolIdentity("team", "tiny/model")
    assert key_of(adapter_object(deployed=False)) is None
    assert key_of(adapter_object(deployed=False, status={"deploymentState": "Unloading"})) == KEY
    pod = {"kind": "Pod", "metadata": {"namespace": "team", "annotations": {"rlrun.dev/model": "tiny/model"}}}
    assert key_of(pod) == KEY
    assert key_of({"kind": "Pod", "metadata": {"namespace": "team"}}) is None


@pytest.mark.parametrize(
    "uri",
    ["s3://rlrun/other/run-one/adapters/step-000010", "s3://rlrun/team/run-two/adapters/step-000010"],
    ids=["of another namespace", "of another run"],
)
async def test_an_adapter_with_the_uri_of_another_owner_is_not_served(pools: Pools, uri: str) -> None:
    adapter = adapter_object()
    await pools.put({**adapter, "spec": {**adapter["spec"], "uri": uri}})
    assert (pools.state(), pools.objects) == ("DeployFailed", [])
    assert pools.status()["deploymentMessage"].startswith("ArtifactNotOwned: ")


async def test_a_pool_takes_over_no_object_of_another_owner(pools: Pools) -> None:
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": KEY.name, "namespace": "team"}}
    pools.cluster.put(theirs)
    before = pools.cluster.find("Service", KEY.name)
    pools.cluster.put(adapter_object())
    with pytest.raises(ApiError):
        await pools.reconcile()
    assert pools.cluster.find("Service", KEY.name) == before
    assert "has a different owner" in pools.status()["deploymentMessage"]
