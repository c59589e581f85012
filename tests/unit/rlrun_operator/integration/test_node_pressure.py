"""Nodes whose disk or memory is full: what a run says, and how often it tries again."""

import copy

from rlrun.kube.objects import Obj

from tests.support.cluster_objects import evict, model_object, run_object, source_secret
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubelet import step_kubelet
from tests.support.operator_world import World

FULL = (
    "The node was low on resource: ephemeral-storage. Threshold quantity: 10736283648, available: 8123412Ki. Container "
    "fetch-model was using 14336Mi, request is 64Mi, has larger consumption of ephemeral-storage."
)


def replace_evicted(world: World, number: int) -> bool:
    """The kubelet evicts the trainer's pod, and the ReplicaSet creates the next one. False if there is none."""
    living = [p for p in world.cluster.all("Pod") if "trainer" in p["metadata"]["name"] and "reason" not in p["status"]]
    if not living:
        return False
    ended = living[-1]
    following: Obj = copy.deepcopy(ended)
    world.cluster.put(evict(ended, FULL))
    created = world.clock().isoformat().replace("+00:00", "Z")
    following["metadata"] |= {"name": f"reverse-trainer-r{number}", "uid": f"r{number}", "creationTimestamp": created}
    world.cluster.put(following)
    return True


async def test_a_full_disk_is_named_at_once_and_ends_few_pods() -> None:
    world = World(FakeCluster(run_object(), model_object(), source_secret()))
    await world.reconcile(2)
    step_kubelet(world.cluster, ready=False)
    await world.reconcile()
    evictions = 0
    for look in range(240):
        evictions += replace_evicted(world, look)
        await world.reconcile(after=30)
        if evictions == 1:
            assert "low on resource: ephemeral-storage" in world.status["message"]
            assert world.condition("TrainerReady")["reason"] == "PodEvicted"
        if world.status["phase"] == "Failed":
            break
        step_kubelet(world.cluster, ready=False)
    assert (world.status["phase"], world.status["reason"]) == ("Failed", "PodEvicted")
    assert "low on resource: ephemeral-storage" in world.status["message"]
    assert evictions <= 8
