"""Serving pools of a model with a cache: they wait for the claim that runs use, and mount it."""

from typing import Any

import pytest
from rlrun.api.model import RLModelSpec
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun_operator.controller.models.model_status import CacheStates
from rlrun_operator.controller.models.weights_caches import sweep_caches
from rlrun_operator.resources.models.model_volumes import cache_claim

from tests.support.cluster_objects import model_object, run_object, source_secret, terminated
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubelet import step_kubelet
from tests.support.operator_world import World
from tests.support.serving_pools import KEY, MemorySidecars, Pools, adapter_object

COMMIT = "1cfa9a7208912126459214e8b04321603b3df60c"
OTHER = f"hf://owner/model@{'0' * 40}"
CLAIM, DEPLOYMENT = "PersistentVolumeClaim", "Deployment"
POOL = ["ConfigMap", "Deployment", "NetworkPolicy", "Secret", "Secret", "Service", "ServiceAccount"]


def model(**changes: Any) -> Obj:
    cache = {"storageClass": "shared", "size": "20Gi"}
    return model_object(**{"source": f"hf://owner/model@{COMMIT}", "cache": cache, **changes})


def claim_of(obj: Obj) -> str:
    return str(cache_claim(RLModelSpec.model_validate(obj["spec"], by_alias=True)))


NAME = claim_of(model())


@pytest.fixture
def pools() -> Pools:
    cluster = FakeCluster(model(), source_secret(), adapter_object())
    return Pools(cluster, MemorySidecars(cluster))


def end_job(pools: Pools, kind: str = "Complete", name: str = NAME) -> None:
    """The Job controller reports the end of the Job."""
    job = pools.cluster.held("Job", name)
    at = pools.clock().isoformat().replace("+00:00", "Z")
    condition = {"type": kind, "status": "True", "lastTransitionTime": at, "reason": "X", "message": "it gave up"}
    pools.cluster.put({**job, "status": {"conditions": [condition]}})


def mounted(pools: Pools) -> Obj:
    """The volume of the pool's engines that has the weights."""
    (deployment,) = pools.cluster.all(DEPLOYMENT)
    spec = deployment["spec"]["template"]["spec"]
    assert "fetch-model" not in {c["name"] for c in spec.get("initContainers") or []}
    (volume,) = (v for v in spec["volumes"] if v["name"] == "models")
    return dict(volume["persistentVolumeClaim"])


async def serve(pools: Pools) -> None:
    await pools.reconcile()
    end_job(pools)
    await pools.deploy()
    assert pools.state() == "Deployed"


async def sweep(pools: Pools, *runs: Obj) -> Any:
    return await sweep_caches(pools.cluster.kube, runs)


async def test_a_pool_is_created_when_the_claim_has_the_weights(pools: Pools) -> None:
    again = await pools.reconcile(2)
    assert pools.cluster.all(DEPLOYMENT) == [], "no engine waits with a GPU"
    (claim,) = pools.cluster.all(CLAIM)
    assert (claim["metadata"]["name"], claim["spec"]["storageClassName"]) == (NAME, "shared")
    assert pools.state() == "Deploying"
    assert pools.status()["deploymentMessage"].startswith("WeightsDownloading: ")
    assert again is not None
    end_job(pools)
    await pools.reconcile()
    assert sorted(kind for kind in pools.objects if kind in POOL).count("Deployment") == 1
    assert mounted(pools) == {"claimName": NAME, "readOnly": True}
    pools.start_pods()
    assert await pools.reach() == "Deployed"


async def test_a_pool_and_a_run_share_the_download(pools: Pools) -> None:
    pools.cluster.put(run_object())
    world = World(pools.cluster, clock=pools.clock)
    await world.reconcile(2)
    await pools.reconcile(2)
    jobs = [job for job in pools.cluster.all("Job") if job["metadata"]["name"].startswith("rlrun-weights-")]
    assert len(jobs) == len(pools.cluster.all(CLAIM)) == 1
    end_job(pools)
    await world.reconcile(2)
    await pools.reconcile()
    assert world.condition("WeightsCached")["status"] == "True"
    assert mounted(pools)["claimName"] == NAME


async def test_a_pool_that_is_up_to_date_is_not_written_again(pools: Pools) -> None:
    await serve(pools)
    writes = pools.cluster.writes
    await pools.reconcile(3)
    assert pools.cluster.writes == writes


async def test_a_pool_without_a_cache_downloads_for_each_pod(pools: Pools) -> None:
    await pools.put(model(cache=None))
    (deployment,) = pools.cluster.all(DEPLOYMENT)
    assert "fetch-model" in {c["name"] for c in deployment["spec"]["template"]["spec"]["initContainers"]}
    assert (pools.cluster.all(CLAIM), pools.cluster.all("Job")) == ([], [])


async def test_a_problem_of_the_download_is_that_of_the_deployment(pools: Pools) -> None:
    await pools.reconcile()
    step_kubelet(pools.cluster)
    pod = pools.cluster.held("Pod", f"{NAME}-0")
    state = terminated(64, "Error", '{"reason": "ModelAccessDenied", "message": "it is gated"}')
    ended = {"name": "fetch-model", "restartCount": 0, "state": state}
    pools.cluster.put({**pod, "status": {"phase": "Failed", "containerStatuses": [ended]}})
    end_job(pools, "Failed")
    first = pools.cluster.find("Job", NAME)
    await pools.reconcile()
    assert (pools.state(), pools.cluster.find("Job", NAME)) == ("DeployFailed", first)
    assert "ModelAccessDenied: " in pools.status()["deploymentMessage"]
    pools.clock.advance(61)
    await pools.reconcile(3)
    assert (pools.cluster.find("Job", NAME) or {})["metadata"]["uid"] != (first or {})["metadata"]["uid"]
    assert pools.status()["deploymentMessage"].startswith("WeightsDownloading: ")


async def test_a_refused_claim_is_reported(pools: Pools) -> None:
    message = "exceeded quota: storage, requested: requests.storage=20Gi, used: 0"
    pools.cluster.answers[f"apply {CLAIM} team/{NAME}"] = [ApiError(403, "Forbidden", message)]
    with pytest.raises(ApiError):
        assert await pools.reach() == "DeployFailed"
    assert f"{CLAIM} team/{NAME}" in pools.status()["deploymentMessage"]


async def test_a_pool_serves_until_the_weights_of_a_changed_model_are_there(pools: Pools) -> None:
    await serve(pools)
    before = pools.cluster.all(DEPLOYMENT)
    changed = model(source=OTHER)
    pools.cluster.put(changed)
    await pools.put(adapter_object("two"), 2)
    assert pools.cluster.all(DEPLOYMENT) == before
    assert (pools.state(), pools.state("two")) == ("Deployed", "Deployed")
    end_job(pools, name=claim_of(changed))
    await pools.reconcile()
    assert mounted(pools)["claimName"] == claim_of(changed)


async def test_the_claim_of_a_pool_stays_until_its_engines_have_another(pools: Pools) -> None:
    await serve(pools)
    changed = model(source=OTHER)
    await pools.put(changed)
    await sweep(pools)
    assert pools.cluster.find(CLAIM, NAME), "an engine that is replaced mounts it"
    end_job(pools, name=claim_of(changed))
    await pools.reconcile()
    assert await sweep(pools) == {claim_of(changed): CacheStates(filled=1)}
    assert pools.cluster.find(CLAIM, NAME) is None


async def test_the_claim_of_a_pool_outlives_its_model(pools: Pools) -> None:
    await serve(pools)
    del pools.cluster.objects["RLModel", "", "tiny-model"]
    await sweep(pools)
    assert pools.cluster.find(CLAIM, NAME)
    pools.change(deployed=False)
    await pools.reconcile(2)
    await sweep(pools)
    assert pools.cluster.find(CLAIM, NAME) is None


async def test_a_claim_that_was_deleted_is_filled_again(pools: Pools) -> None:
    await serve(pools)
    del pools.cluster.objects[CLAIM, "team", NAME]
    await pools.reconcile(2)
    assert pools.cluster.find(CLAIM, NAME)
    assert "status" not in (pools.cluster.find("Job", NAME) or {})
    assert mounted(pools)["claimName"] == NAME


async def test_a_secret_that_the_download_needs_is_asked_for(pools: Pools) -> None:
    """The Job has the hub's variables of the trainer also."""
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    other = {"name": "LICENSE", "valueFrom": {"secretKeyRef": {"name": "license", "key": "token"}}}
    await pools.put(model(trainer={"gpus": 0, "env": [other, token]}))
    assert pools.cluster.all("Job") == []
    assert pools.status()["deploymentMessage"].startswith("SecretsMissing: ")
    metadata = {"name": "hub", "namespace": "team"}
    await pools.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"token": "eA=="}})
    assert [job["metadata"]["name"] for job in pools.cluster.all("Job")] == [claim_of(pools.cluster.all("RLModel")[0])]


async def test_a_pool_of_another_namespace_has_a_claim_of_its_own(pools: Pools) -> None:
    await serve(pools)
    adapter = adapter_object()
    uri = "s3://rlrun/other/run-one/adapters/step-000010"
    metadata = {**adapter["metadata"], "namespace": "other", "uid": "uid-other"}
    pools.cluster.put({**adapter, "metadata": metadata, "spec": {**adapter["spec"], "uri": uri}})
    await pools.reconcile(key=type(KEY)("other", KEY.model))
    assert {c["metadata"]["namespace"] for c in pools.cluster.all(CLAIM)} == {"team", "other"}
