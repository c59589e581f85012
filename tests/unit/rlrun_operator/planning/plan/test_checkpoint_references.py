"""Checkpoints that other runs start from."""

from collections.abc import Callable

import pytest

from tests.support.cluster_objects import run_object
from tests.support.fake_artifacts import manifest
from tests.support.operator_world import World

ROOT = "s3://rlrun/team/uid-1"


@pytest.mark.proves("artifactPolicy")
async def test_checkpoint_used_by_another_run_survives_the_deletion_of_its_run(
    make_world: Callable[..., World],
) -> None:
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
