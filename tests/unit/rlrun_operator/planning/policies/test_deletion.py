"""Deletion of a run, with its artifacts or without."""

from collections.abc import Callable

import pytest
from rlrun.storage.store import Unreachable

from tests.support.fake_artifacts import manifest
from tests.support.fake_cluster import Crash
from tests.support.operator_world import World

ROOT = "s3://rlrun/team/uid-1"


async def delete(world: World) -> None:
    """With artifactPolicy Delete, and an S3 that does not answer."""
    await world.start()
    world.cluster.request_deletion(world.run)
    await world.reconcile()

    async def fail(*_: object) -> None:
        raise Unreachable("no answer")

    world.artifacts.purge = fail  # type: ignore[method-assign, assignment]


@pytest.mark.proves("artifactPolicy")
async def test_deletion_message_names_the_folder_and_the_annotation_that_skips_it(
    make_world: Callable[..., World],
) -> None:
    world = make_world(artifactPolicy="Delete")
    await delete(world)
    with pytest.raises(Unreachable):
        await world.reconcile()
    assert world.status["reason"] == "DeletingArtifacts"
    assert "rlrun.dev/skip-artifact-deletion=true" in world.status["message"]
    assert f"{ROOT}" in world.status["message"]


@pytest.mark.parametrize(("value", "goes"), [("true", True), ("false", False)])
async def test_annotation_skips_the_deletion_of_artifacts(
    make_world: Callable[..., World], value: str, goes: bool
) -> None:
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


async def test_annotation_skips_the_wait_for_pods(make_world: Callable[..., World]) -> None:
    world = make_world(artifactPolicy="Delete")
    await world.start()
    world.run["metadata"]["annotations"] = {"rlrun.dev/skip-artifact-deletion": "true"}
    world.cluster.request_deletion(world.run)
    await world.reconcile()
    assert world.cluster.find("RLRun", "reverse") is None


async def test_checkpoint_objects_are_deleted_before_their_files(
    make_world: Callable[..., World],
) -> None:
    world = make_world(artifactPolicy="Delete")
    await world.start()
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000001"] = manifest(1)
    await world.reconcile()
    world.cluster.request_deletion(world.run)
    await world.reconcile()
    assert world.cluster.all("RLCheckpoint")

    async def die(*_: object) -> None:
        raise Crash

    world.artifacts.purge = die  # type: ignore[method-assign, assignment]
    with pytest.raises(Crash):
        await world.reconcile()
    assert world.cluster.all("RLCheckpoint") == []
