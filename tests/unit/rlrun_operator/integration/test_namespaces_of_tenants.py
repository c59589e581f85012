"""Runs and serving pools in a namespace that is not, or no longer, a tenant: the operator has no rights there."""

from collections.abc import Callable
from typing import Any

from rlrun.constants import Reason
from rlrun.protocol.problem import Problem

from tests.support.cluster_objects import model_object, source_secret
from tests.support.fake_cluster import FakeCluster
from tests.support.operator_world import World
from tests.support.serving_pools import MemorySidecars, Pools, adapter_object

PROBLEM = Problem(reason=Reason.NAMESPACE_NOT_TENANT, message="kubectl label namespace team a=b")


def lose(world: World) -> None:
    world.tenancy_problem = lambda namespace: PROBLEM if namespace == "team" else None


def gain(world: World) -> None:
    world.tenancy_problem = lambda _: None


async def test_a_run_says_that_its_namespace_is_no_tenant_and_starts_when_it_is_one(world: World) -> None:
    lose(world)
    calls = len(world.cluster.calls)
    assert await world.shown() == ("Pending", "NamespaceNotTenant")
    asked = world.cluster.calls[calls:]
    assert {call.partition(" team/")[0] for call in asked} == {
        "get RLRun", "apply the status of RLRun", "create Event",
    }  # fmt: skip
    found = world.condition("ChildrenApplied")
    assert (found["status"], found["reason"], found["message"]) == ("False", "NamespaceNotTenant", PROBLEM.message)
    assert await world.written(3, after=600) == 0, "it is told once"
    gain(world)
    await world.start()
    assert world.condition("ChildrenApplied")["status"] == "True"
    assert world.status.get("reason") != "NamespaceNotTenant"
    assert world.cluster.all("Job")


async def test_pods_of_a_run_go_on_in_a_namespace_that_is_no_longer_a_tenant(world: World) -> None:
    await world.train(step=3)
    before = {obj["metadata"]["uid"] for obj in world.cluster.all("ReplicaSet", "Job", "Pod", "ConfigMap")}
    lose(world)
    world.change_spec(stop=True)
    assert await world.shown(2) == ("Running", "NamespaceNotTenant")
    assert {o["metadata"]["uid"] for o in world.cluster.all("ReplicaSet", "Job", "Pod", "ConfigMap")} == before
    gain(world)
    assert await world.phase(3, after=60) == "Stopped"
    assert world.condition("ChildrenApplied")["status"] == "True"


async def test_a_finished_run_is_left_as_it_is(world: World) -> None:
    await world.train(step=3)
    world.change_spec(stop=True)
    assert await world.phase(4, after=60) == "Stopped"
    lose(world)
    assert await world.written(2, after=60) == 0


async def test_a_run_that_is_deleted_does_not_wait_for_the_label(world: World) -> None:
    await world.start()
    run = world.run
    world.cluster.put({**run, "metadata": {**run["metadata"], "finalizers": ["rlrun.dev/artifacts"]}})
    lose(world)
    world.cluster.request_deletion(world.run, world.clock())
    await world.reconcile()
    assert world.cluster.find("RLRun", "reverse") is None


async def test_files_are_deleted_with_the_label_or_kept_after_the_deadline(make_world: Callable[..., World]) -> None:
    for becomes_tenant in (True, False):
        world = make_world(artifactPolicy="Delete")
        await world.start()
        lose(world)
        world.cluster.request_deletion(world.run, world.clock())
        await world.reconcile(2)
        assert world.status["reason"] == "NamespaceNotTenant"
        assert world.cluster.all("Job"), "the operator may not end the pods, which may write"
        if becomes_tenant:
            gain(world)
            await world.reconcile(3)
        else:
            await world.reconcile(after=world.settings.artifact_deletion_seconds)
            assert any(e["reason"] == "ArtifactsNotDeleted" for e in world.cluster.events)
        assert world.cluster.find("RLRun", "reverse") is None


async def test_a_deployed_adapter_says_that_its_namespace_is_no_tenant() -> None:
    cluster = FakeCluster(model_object(), source_secret(), adapter_object())
    pools = Pools(cluster, MemorySidecars(cluster), tenancy_problem=lambda _: PROBLEM)
    await pools.reconcile()
    status: dict[str, Any] = cluster.all("RLAdapter")[0]["status"]
    assert "NamespaceNotTenant" in str(status)
    assert PROBLEM.message in str(status)
    assert not cluster.all("Deployment", "ServiceAccount")
    pools.tenancy_problem = lambda _: None
    await pools.reconcile(2)
    assert cluster.all("Deployment")
