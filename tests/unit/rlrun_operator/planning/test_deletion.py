"""Deletion of a run, with its artifacts or without."""

from collections.abc import Callable
from typing import Any

import pytest
from rlrun.api.run_sections.retention import ArtifactPolicy
from rlrun.garbage_collection.tombstones import RunTombstone
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.kube.pods import Pod
from rlrun.storage.store import Unreachable
from rlrun_operator.planning.actions import Plan, RunFilesDeletion, TombstoneWrite
from rlrun_operator.planning.artifact_catalog import ArtifactCatalog, KindCatalog
from rlrun_operator.planning.deletion import RETRY_SECONDS, plan_deletion
from rlrun_operator.planning.observation import RunObservation

from tests.support.cluster_objects import checkpoint_object, pod, run_object
from tests.support.expectations import lacks, present
from tests.support.fake_artifacts import manifest
from tests.support.fake_cluster import Crash
from tests.support.operator_world import SETTINGS, World
from tests.support.run_states import at

ROOT = "s3://rlrun/team/uid-1"


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(artifactPolicy="Delete")


async def delete(world: World) -> None:
    """While S3 does not answer."""
    await world.start()
    world.cluster.request_deletion(world.run)
    await world.reconcile()
    world.artifacts.errors["purge"] = Unreachable("no answer")


@pytest.mark.proves("artifactPolicy")
async def test_deletion_message_names_the_folder_and_the_annotation_that_skips_it(world: World) -> None:
    await delete(world)
    with pytest.raises(Unreachable):
        await world.reconcile()
    assert world.status["reason"] == "DeletingArtifacts"
    assert not lacks(world.status["message"], "rlrun.dev/skip-artifact-deletion=true", f"{ROOT}")


@pytest.mark.parametrize(("value", "goes"), [("true", True), ("false", False)])
async def test_annotation_skips_the_deletion_of_artifacts(world: World, value: str, goes: bool) -> None:
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
    assert tombstones(world) == [], "garbage collection would delete the files"


async def test_the_tombstone_is_written_after_the_files_are_deleted(world: World) -> None:
    await delete(world)
    with pytest.raises(Unreachable):
        await world.reconcile()
    assert tombstones(world) == []
    del world.artifacts.errors["purge"]
    await world.reconcile()
    assert world.cluster.find("RLRun", "reverse") is None
    assert len(tombstones(world)) == 1


async def test_a_run_that_is_to_keep_its_artifacts_after_all_frees_their_objects(world: World) -> None:
    await world.start()
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000001"] = manifest(1)
    await world.reconcile()
    (checkpoint,) = world.cluster.all("RLCheckpoint")
    assert [owner["kind"] for owner in checkpoint["metadata"]["ownerReferences"]] == ["RLRun"]
    world.run["spec"]["artifactPolicy"] = "Retain"
    world.cluster.request_deletion(world.run)
    written = f"apply RLCheckpoint team/{checkpoint['metadata']['name']}"
    world.cluster.answers[written] = [ApiError(503, "ServiceUnavailable", "no answer")]
    with pytest.raises(ApiError):
        await world.reconcile()
    assert world.run, "Kubernetes would delete the checkpoint with the run"
    del world.cluster.answers[written]
    await world.reconcile()
    assert world.cluster.find("RLRun", "reverse") is None
    assert [o["metadata"].get("ownerReferences") or [] for o in world.cluster.all("RLCheckpoint")] == [[]]


def tombstones(world: World) -> list[str]:
    return [uri for uri in world.artifacts.files if "/rlrun.deleted/" in uri]


async def test_annotation_skips_the_wait_for_pods(world: World) -> None:
    await world.start()
    world.run["metadata"]["annotations"] = {"rlrun.dev/skip-artifact-deletion": "true"}
    world.cluster.request_deletion(world.run)
    await world.reconcile()
    assert world.cluster.find("RLRun", "reverse") is None


async def test_checkpoint_objects_are_deleted_before_their_files(world: World) -> None:
    await world.start()
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000001"] = manifest(1)
    await world.reconcile()
    world.cluster.request_deletion(world.run)
    await world.reconcile()
    assert world.cluster.all("RLCheckpoint")
    world.artifacts.errors["purge"] = Crash()
    with pytest.raises(Crash):
        await world.reconcile()
    assert world.cluster.all("RLCheckpoint") == []


def deleted(finalizers: tuple[str, ...] = ("rlrun.dev/artifacts",), policy: str = "Delete") -> Obj:
    run = run_object(artifactPolicy=policy)
    run["metadata"] |= {"finalizers": list(finalizers), "deletionTimestamp": "2026-01-01T00:00:00Z"}
    return run


def planned(after: float = 1, run: Obj | None = None, **observed: Any) -> Plan:
    return plan_deletion(RunObservation(run or deleted(), **observed), SETTINGS, at(after))


def checkpoints(*steps: int, owned: bool = False) -> dict[int, Obj]:
    found = {step: checkpoint_object(f"step-{step}", step, f"{ROOT}/checkpoints/step-{step:06d}") for step in steps}
    for obj in found.values():
        obj["metadata"]["ownerReferences"] = [{"kind": "RLRun", "uid": "uid-1"}] if owned else []
    return found


def test_run_without_the_finalizer_needs_nothing() -> None:
    assert planned(run=deleted(())) == Plan()


def test_a_run_that_keeps_its_artifacts_leaves_a_tombstone_that_says_so() -> None:
    run = deleted(policy="Retain")
    assert planned(run=run) == Plan(remove_finalizer=True), "it has not begun, and has no files"
    run["status"] = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
    plan = planned(run=run)
    kept = RunTombstone(artifact_policy=ArtifactPolicy.retain)
    assert plan.tombstone == TombstoneWrite("s3://rlrun/rlrun.deleted/team/uid-1/run.json", kept)
    assert (plan.purge, plan.remove_finalizer) == (None, True)


def test_files_are_deleted_with_their_objects_and_then_the_finalizer() -> None:
    kind = KindCatalog(objects=checkpoints(1, 2, owned=True), referenced=frozenset({2}))
    plan = planned(catalog=ArtifactCatalog(checkpoints=kind, has_references=True))
    assert plan.purge == RunFilesDeletion(ROOT, (f"{ROOT}/checkpoints/step-000002",))
    record = RunTombstone(artifact_policy=ArtifactPolicy.delete, retained=["checkpoints/step-000002"])
    assert present(plan.tombstone).content == record
    assert [ref.name for ref in plan.deletes] == ["step-1"]
    applied = [(o["metadata"]["name"], o["metadata"]["ownerReferences"]) for o in plan.artifact_applies]
    assert applied == [("step-2", [])]
    assert (plan.remove_finalizer, plan.requeue_after) == (True, RETRY_SECONDS)
    assert present(plan.status).reason == "DeletingArtifacts"


@pytest.mark.parametrize("with_pod", [True, False])
def test_files_stay_while_a_pod_may_write_or_references_are_unknown(with_pod: bool) -> None:
    pods = (Pod(pod("trainer", phase="Succeeded")),) if with_pod else ()
    plan = planned(pods=pods, catalog=ArtifactCatalog(has_references=with_pod))
    assert (plan.purge, plan.remove_finalizer, plan.requeue_after) == (None, False, RETRY_SECONDS)


def test_deletion_of_files_ends_at_its_limit_with_a_warning() -> None:
    limit = SETTINGS.artifact_deletion_seconds
    assert not planned(limit - 1).remove_finalizer
    plan = planned(limit)
    assert (plan.purge, plan.remove_finalizer) == (None, True)
    assert [(event.reason, event.warning) for event in plan.events] == [("ArtifactsNotDeleted", True)]
