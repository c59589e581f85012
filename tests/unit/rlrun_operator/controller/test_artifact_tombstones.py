"""Tombstones of artifacts: the event of a deletion leaves one, the absence of an object none."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from rlrun.constants import RUN_LABEL, RUN_UID_LABEL
from rlrun.kube.informer import CachedObject, Informer
from rlrun.kube.kinds import RLCHECKPOINT, RLRUN, ResourceKind
from rlrun.kube.objects import Obj
from rlrun.storage.store import Unreachable
from rlrun_operator.cluster.informers import FOLLOWED, Informers
from rlrun_operator.controller.artifact_tombstones import TRIES, ArtifactTombstones

from tests.support.expectations import present
from tests.support.fake_artifacts import FakeArtifacts
from tests.support.fake_cluster import FakeCluster
from tests.support.operator_world import SETTINGS

UID = "00000001-0000-4000-8000-000000000000"
ROOT = f"s3://rlrun/team/{UID}"
TOMBSTONE = f"s3://rlrun/rlrun.deleted/team/{UID}/checkpoints/step-000010.json"


def checkpoint(uri: str = f"{ROOT}/checkpoints/step-000010", phase: str = "Ready") -> Obj:
    return {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLCheckpoint",
        "metadata": {
            "name": "first-10", "namespace": "team", "uid": "uid-10", "resourceVersion": "10",
            "labels": {RUN_LABEL: "first", RUN_UID_LABEL: UID},
        },
        "spec": {"runName": "first", "runUid": UID, "model": "me/tiny", "step": 10, "uri": uri},
        "status": {"phase": phase},
    }  # fmt: skip


def run(uid: str = UID, **metadata: str) -> Obj:
    named = {"name": "first", "namespace": "team", "uid": uid, "resourceVersion": "5", **metadata}
    return {"apiVersion": "rlrun.dev/v1alpha1", "kind": "RLRun", "metadata": named, "spec": {}}


@dataclass
class Bench:
    informers: Informers
    artifacts: FakeArtifacts

    def informer(self, kind: ResourceKind) -> Informer[CachedObject]:
        return present(self.informers.find(kind, "team"))

    def delete(self, obj: Obj) -> None:
        informer = self.informer(RLCHECKPOINT)
        informer.handle_event("ADDED", obj)
        gone = {**obj, "metadata": {**obj["metadata"], "resourceVersion": "11"}}
        informer.handle_event("DELETED", gone)

    async def written(self) -> list[str]:
        for _ in range(50):
            await asyncio.sleep(0)
        return list(self.artifacts.files)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    informers, artifacts = Informers(FakeCluster().kube, FOLLOWED), FakeArtifacts()

    async def variables() -> dict[str, str]:
        return {}

    for kind in (RLRUN, RLCHECKPOINT):
        await informers._informers[(kind, None)].list()
    tombstones = ArtifactTombstones(artifacts, informers, variables, SETTINGS, pause=0)
    informers.listeners.append(tombstones.on_change)
    writing = asyncio.create_task(tombstones.write())
    yield Bench(informers, artifacts)
    writing.cancel()


async def test_an_artifact_that_is_deleted_after_its_run_leaves_a_tombstone(bench: Bench) -> None:
    bench.delete(checkpoint())
    assert await bench.written() == [TOMBSTONE]


async def test_an_artifact_that_is_missing_from_a_list_leaves_none(bench: Bench) -> None:
    """After etcd was restored, lists lack newer objects, and no event says that they were deleted."""
    informer = bench.informer(RLCHECKPOINT)
    await informer.list()
    informer.handle_event("ADDED", checkpoint())
    await informer.list()
    assert list(informer.all()) == []
    assert await bench.written() == []


@pytest.mark.parametrize(
    ("obj", "owner"),
    [
        (checkpoint(), run()),
        (checkpoint(phase="Deleting"), None),
        (checkpoint("s3://rlrun/other/00000002-0000-4000-8000-000000000000/checkpoints/step-000010"), None),
    ],
    ids=["the run makes it again", "retention has deleted the files", "files of others"],
)
async def test_deletions_that_delete_no_files_leave_none(bench: Bench, obj: Obj, owner: Obj | None) -> None:
    if owner is not None:
        bench.informer(RLRUN).handle_event("ADDED", owner)
    bench.delete(obj)
    assert await bench.written() == []


@pytest.mark.parametrize("owner", [run("another"), run(deletionTimestamp="2026-01-01T00:00:00Z")])
async def test_a_run_that_does_not_make_it_again_does_not_matter(bench: Bench, owner: Obj) -> None:
    bench.informer(RLRUN).handle_event("ADDED", owner)
    bench.delete(checkpoint())
    assert await bench.written() == [TOMBSTONE]


async def test_a_tombstone_that_s3_refuses_is_tried_again_but_not_for_ever(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.artifacts.errors["write_tombstone"] = Unreachable("no answer")
    bench.delete(checkpoint())
    await bench.written()
    assert f"(attempt {TRIES} of {TRIES}): no answer" in caplog.text
    bench.artifacts.errors.clear()
    other = checkpoint(f"{ROOT}/checkpoints/step-000010")
    other["metadata"] |= {"uid": "uid-11", "resourceVersion": "12"}
    bench.delete({**other, "metadata": {**other["metadata"], "resourceVersion": "12"}})
    assert await bench.written() == [TOMBSTONE]
