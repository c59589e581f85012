"""Nodes whose disk or memory is full: what a run says, and how often it tries again."""

import copy

import pytest
from rlrun.kube.objects import Obj

from tests.support.cluster_objects import NODE_FULL, evict, model_object, run_object, source_secret
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubelet import step_kubelet
from tests.support.operator_world import World

CONDITIONS = {
    "trainer": "TrainerReady",
    "inference": "InferenceReady",
    "environment": "EnvironmentsReady",
    "orchestrator": "OrchestratorReady",
}


def replace_evicted(world: World, role: str, number: int) -> bool:
    """The kubelet evicts a pod of the role, and its ReplicaSet or Job creates the next one. False if there is none."""
    pods = [p for p in world.cluster.all("Pod") if p["metadata"]["labels"]["rlrun.dev/role"] == role]
    living = [p for p in pods if p["status"].get("reason") != "Evicted"]
    if not living:
        return False
    ended = living[-1]
    following: Obj = copy.deepcopy(ended)
    world.cluster.put(evict(ended, NODE_FULL))
    created = world.clock().isoformat().replace("+00:00", "Z")
    name = f"{role}-{number}"
    following["metadata"] |= {"name": name, "uid": name, "creationTimestamp": created}
    following["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    world.cluster.put(following)
    return True


@pytest.mark.parametrize("is_ready", [False, True], ids=["as it starts", "after it was ready"])
@pytest.mark.parametrize("role", CONDITIONS)
async def test_a_full_disk_is_named_at_once_and_ends_few_pods(role: str, is_ready: bool) -> None:
    world = World(FakeCluster(run_object(), model_object(), source_secret()))
    await world.reconcile(2)
    step_kubelet(world.cluster, ready=is_ready)
    await world.reconcile(after=120)
    evictions = 0
    for look in range(240):
        evictions += replace_evicted(world, role, look)
        await world.reconcile(after=30)
        if evictions == 1:
            assert world.condition(CONDITIONS[role])["reason"] == "PodEvicted"
            assert "low on resource: ephemeral-storage" in world.condition(CONDITIONS[role])["message"]
        if world.status["phase"] == "Failed":
            break
        step_kubelet(world.cluster, ready=is_ready)
        for pod in world.cluster.all("Pod"):
            if is_ready and pod["status"].get("reason") != "Evicted":
                pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
                world.cluster.put(pod)
        await world.reconcile()
    assert (world.status["phase"], world.status["reason"]) == ("Failed", "PodEvicted")
    assert "low on resource: ephemeral-storage" in world.status["message"]
    assert evictions <= 8
