"""A run without work is looked at until all that its last pods write is listed; and how a deletion ends."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from rlrun.protocol.problem import Problem
from rlrun.storage.store import Unreachable
from rlrun_operator.planning.plan.artifact_catalog import ArtifactCatalog
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.policies.requeue import AWAY_SECONDS, requeue_after_finish

from tests.support.operator_world import START, World, manifest, pod, run_object

ROOT = "s3://rlrun/team/uid-1"


def leaving(world: World, grace: float = 60) -> None:
    """The trainer's pod is told to end, and takes its time."""
    obj = pod("trainer", uid="slow")
    when = world.clock.now + timedelta(seconds=grace)
    obj["metadata"]["deletionTimestamp"] = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    world.cluster.put(obj)


@pytest.mark.proves("stop", "suspend")
@pytest.mark.parametrize(("change", "phase"), [({"stop": True}, "Stopped"), ({"suspend": True}, "Suspended")])
async def test_last_checkpoint_of_a_pod_that_ends_is_listed(world: World, change: dict[str, Any], phase: str) -> None:
    await world.start()
    world.change_spec(**change)
    await world.reconcile()
    assert world.status["phase"] == phase
    leaving(world)
    assert await world.reconcile() == world.settings.poll_seconds
    world.clock.advance(50)
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000007"] = manifest(7)
    del world.cluster.objects[("Pod", "team", "reverse-trainer-slow")]
    assert await world.reconcile() is None
    assert world.status["lastCheckpoint"] == "reverse-step-000007-uid-1"
    assert world.status["phase"] == phase


async def test_pod_on_a_lost_node_is_not_waited_for_for_ever(world: World) -> None:
    await world.start()
    world.change_spec(suspend=True)
    await world.reconcile()
    leaving(world, grace=60)
    world.clock.advance(119)
    assert await world.reconcile() == world.settings.poll_seconds
    world.clock.advance(1)
    assert await world.reconcile() is None


def test_s3_that_is_away_is_asked_again() -> None:
    away = RunObservation(run_object(), artifacts_problem=Problem(reason="S3Unreachable", message="m"))
    assert requeue_after_finish(away, START, 2) == AWAY_SECONDS
    assert requeue_after_finish(RunObservation(run_object(), catalog=ArtifactCatalog(is_listed=True)), START, 2) is None


@pytest.mark.proves("ttlSecondsAfterFinished")
async def test_time_to_live_waits_for_the_last_checkpoint_but_not_long(make_world: Callable[..., World]) -> None:
    world = make_world(ttlSecondsAfterFinished=0)
    await world.start()
    world.change_spec(stop=True)
    await world.reconcile()
    leaving(world, grace=600)
    await world.reconcile()
    assert world.run
    world.clock.advance(120)
    await world.reconcile()
    assert world.cluster.find("RLRun", "reverse") is None


async def delete(world: World) -> None:
    """With artifactPolicy Delete, and an S3 that does not answer."""
    await world.start()
    world.cluster.request_deletion(world.run)
    await world.reconcile()

    async def fail(*_: object) -> None:
        raise Unreachable("no answer")

    world.artifacts.purge = fail  # type: ignore[method-assign, assignment]


@pytest.mark.proves("artifactPolicy")
async def test_deletion_says_what_it_does_and_how_to_escape(make_world: Callable[..., World]) -> None:
    world = make_world(artifactPolicy="Delete")
    await delete(world)
    with pytest.raises(Unreachable):
        await world.reconcile()
    assert world.status["reason"] == "DeletingArtifacts"
    assert "rlrun.dev/skip-artifact-deletion=true" in world.status["message"]
    assert f"{ROOT}" in world.status["message"]


@pytest.mark.parametrize(("value", "goes"), [("true", True), ("false", False)])
async def test_annotation_lets_the_run_go_at_once(make_world: Callable[..., World], value: str, goes: bool) -> None:
    world = make_world(artifactPolicy="Delete")
    await delete(world)
    world.run["metadata"]["annotations"] = {"rlrun.dev/skip-artifact-deletion": value}
    if not goes:
        with pytest.raises(Unreachable):
            await world.reconcile()
        assert world.run
        return
    await world.reconcile()
    assert world.cluster.find("RLRun", "reverse") is None
    assert any(e["reason"] == "ArtifactsNotDeleted" for e in world.cluster.events)


async def test_annotation_does_not_wait_for_pods_either(make_world: Callable[..., World]) -> None:
    world = make_world(artifactPolicy="Delete")
    await world.start()
    world.run["metadata"]["annotations"] = {"rlrun.dev/skip-artifact-deletion": "true"}
    world.cluster.request_deletion(world.run)
    await world.reconcile()
    assert world.cluster.find("RLRun", "reverse") is None


@pytest.mark.proves("priorityClassName")
async def test_another_priority_is_that_of_the_next_attempt(world: World) -> None:
    await world.start()
    before = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in world.cluster.all("Deployment", "Job")}
    world.change_spec(priorityClassName="urgent")
    await world.reconcile(2)
    after = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in world.cluster.all("Deployment", "Job")}
    assert after == before, "nothing that trains is restarted for it"
    world.change_spec(suspend=True)
    await world.reconcile()
    world.change_spec(suspend=False)
    await world.reconcile(2)
    templates = [o["spec"]["template"]["spec"] for o in world.cluster.all("Deployment", "Job")]
    assert len(templates) == 4
    assert {t["priorityClassName"] for t in templates} == {"urgent"}


@pytest.mark.proves("artifactPolicy")
async def test_what_another_run_starts_from_outlives_its_run(make_world: Callable[..., World]) -> None:
    world = make_world(artifactPolicy="Delete")
    await world.start()
    for step in (1, 2):
        world.artifacts.folders[f"{ROOT}/checkpoints/step-{step:06d}"] = manifest(step)
    await world.reconcile()
    other = run_object("other", uid="uid-2", checkpointId="reverse-step-000001-uid-1")
    world.cluster.put(other)
    world.cluster.request_deletion(world.run)
    await world.reconcile(3)
    assert world.cluster.find("RLRun", "reverse") is None
    assert list(world.artifacts.folders) == [f"{ROOT}/checkpoints/step-000001"]
    assert [(o["spec"]["step"], o["status"]["phase"]) for o in world.cluster.all("RLCheckpoint")] == [(1, "Ready")]
    assert world.cluster.all("RLCheckpoint")[0]["metadata"].get("ownerReferences") == []
