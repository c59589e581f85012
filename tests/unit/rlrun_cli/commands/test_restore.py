"""`rlrun restore` against a real S3 and the cluster in memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rlrun.api.run_sections.retention import ArtifactPolicy
from rlrun.garbage_collection.installation import write_mark
from rlrun.garbage_collection.tombstones import RunTombstone, artifact_tombstone, run_tombstone
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import RLRUN
from rlrun.kube.objects import artifact_name
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import Store

from tests.support.command_line import Rlrun
from tests.support.expectations import present
from tests.support.fake_cluster import FakeCluster
from tests.unit.rlrun_cli.conftest import custom_object

LOST, LIVE = (f"{n:08x}-0000-4000-8000-000000000000" for n in range(1, 3))
CLUSTER = "uid-of-kube-system"
TEN, TWENTY = artifact_name("first", LOST, 10), artifact_name("first", LOST, 20)


@dataclass
class World:
    cluster: FakeCluster
    store: Store
    root: S3Uri
    rlrun: Rlrun

    def restore(self, *options: str) -> Any:
        return self.rlrun("restore", "--bucket", self.root.bucket, "--prefix", self.root.key, *options)

    def layout(self, uid: str, namespace: str = "team") -> RunLayout:
        return RunLayout(self.root / namespace / uid)

    def upload(self, uid: str, step: int, kind: ArtifactKind = ArtifactKind.checkpoint, **facts: Any) -> S3Uri:
        layout = self.layout(uid)
        uri = layout.checkpoint(step) if kind is ArtifactKind.checkpoint else layout.adapter(step)
        known = {"run_name": "first", "run_uid": uid, "namespace": "team", "model": "me/tiny", "policy_version": step}
        self.store.upload_artifact({"a": b"x" * 20}, uri, kind, step=step, **(known | facts))
        return uri

    def made(self) -> list[tuple[str, str]]:
        return sorted((o["kind"], o["metadata"]["name"]) for o in self.cluster.all("RLCheckpoint", "RLAdapter"))


@pytest.fixture
def world(on_s3: Rlrun, api: FakeCluster, store: Store, bucket: str, tmp_path: Path) -> Iterator[World]:
    """A run that the cluster has lost with two checkpoints and an adapter, and one that it has."""
    seen = World(api, store, S3Uri(bucket, f"restore/{tmp_path.name}"), on_s3)
    api.put({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": CLUSTER}})
    write_mark(store, seen.root, CLUSTER, replace=False)
    for step in (10, 20):
        seen.upload(LOST, step, details={"reward": 0.5})
    seen.upload(LOST, 20, ArtifactKind.adapter)
    seen.upload(LIVE, 10)
    live = custom_object(RLRUN, "live", created="2026-01-01T00:00:00Z", status={"phase": "Running"})
    live["metadata"]["uid"] = LIVE
    api.put(live)
    yield seen
    store.delete_prefix(seen.root)


def test_missing_objects_are_listed_and_then_made_from_the_manifests(world: World) -> None:
    listed = world.restore()
    assert listed.code == 0, listed.err
    assert "Missing objects in all namespaces: 3; none was created" in listed.err
    assert world.made() == []
    done = world.restore("--create")
    assert done.code == 0, done.err
    assert world.made() == [("RLAdapter", TWENTY), ("RLCheckpoint", TEN), ("RLCheckpoint", TWENTY)]
    uri = world.layout(LOST).checkpoint(10)
    found = world.cluster.held("RLCheckpoint", TEN)
    assert found["spec"] == {"runName": "first", "runUid": LOST, "model": "me/tiny", "step": 10, "uri": str(uri)}
    assert found["metadata"]["labels"]["rlrun.dev/run-uid"] == LOST
    digest = present(world.store.read_stored_manifest(uri)).digest
    facts = {k: v for k, v in found["status"].items() if k != "createdAt"}
    assert facts == {"phase": "Ready", "sizeBytes": 20, "reward": 0.5, "policyVersion": 10, "digest": digest}


def test_a_second_call_makes_nothing_and_changes_nothing(world: World) -> None:
    assert world.restore("--create").code == 0
    world.cluster.held("RLCheckpoint", TEN)["spec"]["sharedWith"] = ["other"]
    before = [dict(o) for o in world.cluster.all("RLCheckpoint", "RLAdapter")]
    again = world.restore("--create")
    assert (again.code, world.cluster.all("RLCheckpoint", "RLAdapter")) == (0, before)
    assert "All checkpoints and adapters in all namespaces have objects" in again.err


def test_a_call_that_was_interrupted_before_the_status_is_completed(world: World) -> None:
    world.restore("--create")
    found = world.cluster.held("RLCheckpoint", TEN)
    status = found.pop("status")
    assert world.restore("--create").code == 0
    assert world.cluster.held("RLCheckpoint", TEN)["status"] == status


def test_an_object_of_that_name_with_other_files_is_not_changed(world: World) -> None:
    world.restore("--create")
    found = world.cluster.held("RLCheckpoint", TEN)
    found["spec"]["uri"] = "s3://elsewhere/x"
    answer = world.restore("--create")
    assert answer.code == 1
    assert f"RLCheckpoint team/{TEN}" in answer.err
    assert world.cluster.held("RLCheckpoint", TEN)["spec"]["uri"] == "s3://elsewhere/x"


@pytest.mark.parametrize("record", ["run", "artifact"])
def test_what_was_deleted_on_purpose_stays_deleted(world: World, record: str) -> None:
    if record == "run":
        content = RunTombstone(artifact_policy=ArtifactPolicy.delete, retained=["checkpoints/step-000020"])
        world.store.put_bytes(run_tombstone(world.root, "team", LOST), content.to_bytes())
        expected = [("RLCheckpoint", TWENTY)]
    else:
        for uri in (world.layout(LOST).checkpoint(10), world.layout(LOST).adapter(20)):
            world.store.put_bytes(present(artifact_tombstone(world.root, uri)), b"{}")
        expected = [("RLCheckpoint", TWENTY)]
    assert world.restore("--create").code == 0
    assert world.made() == expected


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"run_name": None}, "no valid run name or model"),
        ({"run_name": "../other"}, "no valid run name or model"),
        ({"model": None}, "no valid run name or model"),
        ({"run_uid": LIVE}, "belongs to another artifact"),
    ],
)
def test_an_artifact_whose_manifest_does_not_say_enough_is_named(
    world: World, facts: dict[str, Any], message: str
) -> None:
    world.upload(LOST, 30, **facts)
    answer = world.restore("--create")
    assert answer.code == 1
    assert f"{world.layout(LOST).checkpoint(30)}: " in answer.err
    assert message in answer.err
    assert len(world.made()) == 3, "the others are made"


def test_an_artifact_that_lacks_files_is_named_and_not_made(world: World) -> None:
    world.store.delete_object(world.layout(LOST).checkpoint(10) / "a")
    answer = world.restore("--create")
    assert answer.code == 1
    assert "files that are missing or have the wrong size: 1 of 1, the first is a" in answer.err
    assert ("RLCheckpoint", TEN) not in world.made()


def test_a_namespace_that_does_not_exist_is_named_and_the_others_are_restored(world: World) -> None:
    missing = ApiError(404, "NotFound", 'namespaces "team" not found')
    world.cluster.answers["create rladapters in namespace team"] = [missing]
    world.cluster.answers[f"create RLAdapter team/{TWENTY}"] = [missing]
    answer = world.restore("--create")
    assert answer.code == 1
    assert 'namespaces "team" not found' in answer.err
    assert len(world.made()) == 2


def test_a_cluster_that_the_bucket_is_not_marked_for_makes_nothing(world: World) -> None:
    write_mark(world.store, world.root, "another", replace=True)
    answer = world.restore("--create")
    assert answer.code == 1
    assert "rlrun gc --adopt" in answer.err
    assert world.made() == []


def test_one_namespace(world: World) -> None:
    assert "in other have objects" in world.restore("-n", "other").err
