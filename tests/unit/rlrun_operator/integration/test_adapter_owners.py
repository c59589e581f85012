"""Deployed adapters survive the deletion of their run, and two reconcilers share one status."""

from collections.abc import Callable

from tests.support.fake_artifacts import manifest
from tests.support.operator_world import World
from tests.support.serving_pools import MemorySidecars, Pools

ROOT = "s3://rlrun/team/uid-1"


def deploy(world: World, step: int) -> None:
    obj = next(o for o in world.cluster.all("RLAdapter") if o["spec"]["step"] == step)
    world.cluster.put({**obj, "spec": {**obj["spec"], "deployed": True}})


async def test_adapter_deployed_during_deletion_keeps_its_files(make_world: Callable[..., World]) -> None:
    world = make_world(artifactPolicy="Delete")
    await world.start()
    for step in (1, 2):
        world.artifacts.folders[f"{ROOT}/adapters/step-{step:06d}"] = manifest(step)
    await world.reconcile()
    deploy(world, 2)
    world.cluster.request_deletion(world.run)
    await world.reconcile(3)
    assert world.cluster.find("RLRun", "reverse") is None
    (adapter,) = world.cluster.all("RLAdapter")
    assert (adapter["spec"]["step"], adapter["spec"]["deployed"]) == (2, True)
    assert list(world.artifacts.folders) == [f"{ROOT}/adapters/step-000002"]
    pools = Pools(world.cluster, MemorySidecars(world.cluster))
    await pools.deploy()
    assert pools.state(adapter["metadata"]["name"]) == "Deployed"


async def test_run_owns_its_adapters_only_while_they_are_not_deployed(make_world: Callable[..., World]) -> None:
    world = make_world(artifactPolicy="Delete")
    await world.start()
    world.artifacts.folders[f"{ROOT}/adapters/step-000001"] = manifest(1)
    await world.reconcile()

    def owners() -> list[str]:
        return [o["uid"] for o in world.cluster.all("RLAdapter")[0]["metadata"]["ownerReferences"]]

    assert owners() == ["uid-1"]
    deploy(world, 1)
    await world.reconcile()
    assert owners() == []
    adapter = world.cluster.all("RLAdapter")[0]
    assert adapter["spec"]["deployed"], "what is the user's is left alone"
    await world.put({**adapter, "spec": {**adapter["spec"], "deployed": False}})
    assert owners() == ["uid-1"]


async def test_the_runs_reconciler_and_the_pools_write_each_their_part_of_a_status(world: World) -> None:
    await world.start()
    folder = f"{ROOT}/adapters/step-000001"
    world.artifacts.folders[folder] = manifest(1)
    await world.reconcile()
    deploy(world, 1)
    pools = Pools(world.cluster, MemorySidecars(world.cluster))
    await pools.deploy()
    (adapter,) = world.cluster.all("RLAdapter")
    name = adapter["metadata"]["name"]
    assert pools.state(name) == "Deployed"
    del world.artifacts.folders[folder]
    await world.reconcile()
    status = pools.status(name)
    assert (status["phase"], status["deploymentState"], "deploymentUrl" in status) == ("Failed", "Deployed", True)
    pools.change(name, deployed=False)
    world.artifacts.folders[folder] = manifest(1)
    await world.reconcile()
    await pools.reconcile()
    for pod in world.cluster.all("Pod"):
        world.cluster.request_deletion(pod)
    await pools.reconcile()
    status = pools.status(name)
    assert (status["phase"], status["deploymentState"]) == ("Ready", "NotDeployed")
    assert not {"deploymentUrl", "deploymentMessage"} & status.keys()
    writes = world.cluster.writes
    await pools.reconcile(2)
    assert world.cluster.writes == writes
