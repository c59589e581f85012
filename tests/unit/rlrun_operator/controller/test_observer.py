"""What a reconcile reads of Secrets, S3 and the checkpoint that a run starts from."""

from collections.abc import Callable, Mapping

import pytest
from rlrun.constants import FIELD_MANAGER
from rlrun.kube.objects import Obj
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun.storage.store import Unreachable
from typing_extensions import override

from tests.support.cluster_objects import run_object, source_secret
from tests.support.fake_artifacts import FakeArtifacts, manifest
from tests.support.fake_kubelet import end_orchestrator
from tests.support.operator_world import World

ROOT = "s3://rlrun/team/uid-1"
TOKENS = "reverse-rlrun-token"


def left(kind: str, name: str, run: str = "reverse", uid: str = "uid-1") -> Obj:
    """Return an object of the operator that a run has left."""
    labels = {"rlrun.dev/run": run, "rlrun.dev/run-uid": uid, "app.kubernetes.io/managed-by": FIELD_MANAGER}
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "team", "labels": labels}}


async def complete(world: World) -> None:
    await world.start()
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000010"] = manifest(10)
    last = RunStatus(phase=RunPhase.completed, step=10, max_steps=10)
    end_orchestrator(world.cluster, 0, last.model_dump_json(by_alias=True))
    assert await world.phase(4) == "Completed"


async def test_a_secret_of_another_run_is_not_deleted(world: World) -> None:
    """Also if it has the name of the run's own, and the labels of an earlier run's."""
    world.cluster.put(left("Secret", TOKENS, run="other", uid="uid-0"))
    await world.reconcile(2)
    found = world.cluster.find("Secret", TOKENS)
    assert found is not None
    assert found["metadata"]["labels"]["rlrun.dev/run"] == "other"


async def test_a_secret_that_is_left_long_after_the_end_is_deleted(world: World) -> None:
    """An operator that was killed while it deleted the objects of a run has left them."""
    await complete(world)
    assert world.cluster.find("Secret", TOKENS) is None
    for obj in (left("ConfigMap", "reverse-config"), left("Secret", TOKENS)):
        world.cluster.put(obj)
    world.follow()
    await world.reconcile(3, after=10 * 86400)
    assert world.cluster.find("Secret", TOKENS) is None


async def test_a_new_run_has_the_current_credentials_of_s3(world: World) -> None:
    world.follow()
    await world.reconcile(2)
    world.cluster.put(source_secret())
    world.cluster.put(run_object("second", uid="uid-2"))
    world.cluster.requests.clear()
    await world.reconcile(name="second")
    assert "get Secret rlrun-system/s3" in world.cluster.calls


class CheckedArtifacts(FakeArtifacts):
    """Artifacts of a bucket that is checked."""

    checks = 0

    @override
    async def check(self, variables: Mapping[str, str], bucket: str) -> Problem | None:
        self.checks += 1
        return await super().check(variables, bucket)


async def test_the_bucket_is_not_checked_for_a_run_that_has_ended(world: World) -> None:
    world.artifacts = artifacts = CheckedArtifacts()
    await complete(world)
    assert artifacts.checks
    artifacts.checks = 0
    await world.reconcile(3)
    assert artifacts.checks == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [(Unreachable("no answer"), "S3Unreachable"), (ValueError("no such place"), "CheckpointIncomplete")],
)
async def test_no_run_starts_from_a_checkpoint_that_cannot_be_verified(
    make_world: Callable[..., World], error: Exception, reason: str
) -> None:
    world = make_world(checkpointId="other-step-5")
    checkpoint = {
        **left("RLCheckpoint", "other-step-5", "other", "uid-0"),
        "apiVersion": "rlrun.dev/v1alpha1",
        "spec": {
            "runName": "other",
            "runUid": "uid-0",
            "model": world.run["spec"]["model"],
            "step": 5,
            "uri": "s3://rlrun/team/uid-0/checkpoints/step-000005",
        },
        "status": {"phase": "Ready"},
    }
    world.cluster.put(checkpoint)
    world.artifacts.errors["verify"] = error
    assert await world.shown(3) == ("Pending", reason)
    assert world.cluster.all("ReplicaSet", "Job") == []
    world.artifacts.errors.clear()
    await world.reconcile(2)
    assert len(world.cluster.all("ReplicaSet", "Job")) == 4
