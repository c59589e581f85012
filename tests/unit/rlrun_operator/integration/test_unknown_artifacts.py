"""Decisions about a run whose files in S3 are unknown for a while: they are neither taken for none nor for whole."""

from collections.abc import Callable
from typing import Any

import pytest
from rlrun.kube.objects import Obj
from rlrun.storage.store import BucketMissing, StoreError, Unreachable

from tests.support.fake_artifacts import manifest
from tests.support.operator_world import World


async def fail(*_: object) -> Any:
    raise Unreachable("no answer")


async def test_a_finished_run_is_not_deleted_while_its_artifacts_are_unknown(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(ttlSecondsAfterFinished=0)
    await world.start()
    world.artifacts.folders["s3://rlrun/team/uid-1/checkpoints/step-000005"] = manifest(5)
    with monkeypatch.context() as patch:
        patch.setattr(world.artifacts, "list", fail)
        world.change_spec(stop=True)
        for _ in range(4):
            assert await world.reconcile() is not None
            world.clock.advance(200)
        assert world.condition("ArtifactsListed")["reason"] == "S3Unreachable"
        assert world.cluster.all("RLCheckpoint") == []
    await world.reconcile(2)
    assert world.cluster.all("RLCheckpoint")
    assert world.cluster.find("RLRun", "reverse") is None


async def test_a_finished_run_is_not_deleted_while_there_are_no_credentials(make_world: Callable[..., World]) -> None:
    world = make_world(ttlSecondsAfterFinished=0)
    await world.start()
    secret = world.cluster.objects.pop(("Secret", "rlrun-system", "s3"))
    world.change_spec(stop=True)
    for _ in range(4):
        await world.reconcile()
        world.clock.advance(200)
    assert world.condition("ArtifactsListed")["reason"] == "S3CredentialsMissing"
    world.cluster.put(secret)
    await world.reconcile(2)
    assert world.cluster.find("RLRun", "reverse") is None


@pytest.mark.parametrize("error", [Unreachable("no answer"), BucketMissing("no bucket")])
async def test_a_run_waits_while_the_files_of_its_checkpoint_are_unknown(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    world = make_world(checkpointId="earlier-step-000005-uid-9")
    uri = "s3://rlrun/team/uid-9/checkpoints/step-000005"
    world.cluster.put(checkpoint("earlier-step-000005-uid-9", uri))

    async def verify(*_: object) -> str | None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(world.artifacts, "verify", verify)
        await world.reconcile(2)
        assert world.condition("Validated")["reason"] == error.reason
        assert world.cluster.all("ReplicaSet") == []
    await world.reconcile()
    assert world.cluster.all("ReplicaSet")


def checkpoint(name: str, uri: str) -> Obj:
    return {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLCheckpoint",
        "metadata": {"name": name, "namespace": "team", "uid": name, "labels": {"rlrun.dev/run-uid": "uid-9"}},
        "spec": {"runName": "earlier", "runUid": "uid-9", "model": "tiny/model", "step": 5, "uri": uri},
        "status": {"phase": "Ready", "sizeBytes": 100},
    }
