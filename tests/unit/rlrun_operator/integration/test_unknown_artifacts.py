"""Decisions about a run whose files in S3 are unknown for a while: they are neither taken for none nor for whole."""

from collections.abc import Callable

import pytest
from rlrun.storage.store import BucketMissing, StoreError, Unreachable
from rlrun_operator.storage.artifact_store import TooManyObjects

from tests.support.cluster_objects import checkpoint_object
from tests.support.fake_artifacts import manifest
from tests.support.fake_poller import training
from tests.support.operator_world import World


async def test_a_finished_run_is_not_deleted_while_its_artifacts_are_unknown(make_world: Callable[..., World]) -> None:
    world = make_world(ttlSecondsAfterFinished=0)
    await world.start()
    world.artifacts.folders["s3://rlrun/team/uid-1/checkpoints/step-000005"] = manifest(5)
    world.artifacts.errors["list"] = Unreachable("no answer")
    world.change_spec(stop=True)
    for _ in range(4):
        assert await world.reconcile() is not None
        world.clock.advance(200)
    assert world.condition("ArtifactsListed")["reason"] == "S3Unreachable"
    assert world.cluster.all("RLCheckpoint") == []
    world.artifacts.errors.clear()
    await world.reconcile(2)
    assert world.cluster.all("RLCheckpoint")
    assert world.cluster.find("RLRun", "reverse") is None


async def test_a_run_with_too_many_files_says_so_and_goes_on(world: World) -> None:
    await world.start()
    folder = "s3://rlrun/team/uid-1/checkpoints"
    world.artifacts.errors["list"] = TooManyObjects(folder, 200_000)
    world.poller.answer = training(7)
    await world.reconcile(2)
    condition = world.condition("ArtifactsListed")
    assert (condition["status"], condition["reason"]) == ("False", "S3TooManyObjects")
    assert condition["message"].startswith(f"{folder} contains more than 200,000 objects")
    assert world.status["phase"] == "Running"


async def test_a_finished_run_is_not_deleted_while_there_are_no_credentials(make_world: Callable[..., World]) -> None:
    world = make_world(ttlSecondsAfterFinished=0)
    await world.start()
    secret = world.cluster.objects.pop(("Secret", "rlrun-system", "s3"))
    world.change_spec(stop=True)
    for _ in range(4):
        await world.reconcile()
        world.clock.advance(200)
    assert world.condition("ArtifactsListed")["reason"] == "S3CredentialsMissing"
    await world.put(secret, 2)
    assert world.cluster.find("RLRun", "reverse") is None


@pytest.mark.parametrize("error", [Unreachable("no answer"), BucketMissing("no bucket"), TooManyObjects("s3://b", 5)])
async def test_a_run_waits_while_the_files_of_its_checkpoint_are_unknown(
    make_world: Callable[..., World], error: StoreError
) -> None:
    name, uri = "earlier-step-000005-uid-9", "s3://rlrun/team/uid-9/checkpoints/step-000005"
    world = make_world(checkpointId=name)
    world.artifacts.errors["verify"] = error
    await world.put(checkpoint_object(name, 5, uri, run="earlier", uid="uid-9", sizeBytes=100), 2)
    assert world.condition("Validated")["reason"] == error.reason
    assert world.cluster.all("ReplicaSet") == []
    world.artifacts.errors.clear()
    await world.reconcile()
    assert world.cluster.all("ReplicaSet")
