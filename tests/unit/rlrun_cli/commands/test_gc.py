"""`rlrun gc` against a real S3 and the cluster in memory."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rlrun.api.run_sections.retention import ArtifactPolicy
from rlrun.constants import FIELD_MANAGER, MANAGED_BY_LABEL, RUN_UID_LABEL
from rlrun.garbage_collection.installation import read_mark, write_mark
from rlrun.garbage_collection.report import parse_age
from rlrun.garbage_collection.tombstones import RunTombstone, run_tombstone
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import JOB, RLADAPTER, RLCHECKPOINT, RLRUN, ResourceKind
from rlrun.kube.objects import Obj
from rlrun.kube.requests import Verb
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import Store, StoreError, Unreachable

from tests.support.command_line import Rlrun
from tests.support.fake_cluster import FakeCluster
from tests.unit.rlrun_cli.conftest import custom_object

GONE, DONE, LIVE, KEPT, LOST = (f"{n:08x}-0000-4000-8000-000000000000" for n in range(1, 6))
CLUSTER = "uid-of-kube-system"
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


FORBIDDEN = ApiError(403, "Forbidden", "no")


def run(name: str, uid: str, phase: str) -> Obj:
    return cluster_object(RLRUN, name, uid, status={"phase": phase})


def artifact(kind: ResourceKind, name: str, uri: S3Uri) -> Obj:
    return cluster_object(kind, name, f"uid-{name}", spec={"runUid": KEPT, "uri": str(uri)})


def cluster_object(kind: ResourceKind, name: str, uid: str, **parts: Any) -> Obj:
    found = custom_object(kind, name, created="2026-01-01T00:00:00Z", **parts)
    found["metadata"]["uid"] = uid
    return found


@dataclass
class World:
    cluster: FakeCluster
    store: Store
    root: S3Uri
    rlrun: Rlrun

    def gc(self, *options: str, **how: Any) -> Any:
        where = ["--bucket", self.root.bucket, "--prefix", self.root.key]
        return self.rlrun("gc", *where, *options, **how)

    def names(self, *options: str) -> list[tuple[str, str]]:
        items = json.loads(self.gc("-o", "json", *options).out)["items"]
        return [(i["reason"], i["name"].removeprefix(f"{self.root}/")) for i in items]

    def layout(self, uid: str) -> RunLayout:
        return RunLayout(self.root / "team" / uid)

    def bury(self, uid: str, policy: ArtifactPolicy = ArtifactPolicy.delete) -> None:
        record = RunTombstone(artifact_policy=policy).to_bytes()
        self.store.put_bytes(run_tombstone(self.root, "team", uid), record)

    @property
    def deleted(self) -> list[str]:
        """Names of the objects whose deletion was requested."""
        return [str(request.name) for request in self.cluster.requests if request.verb is Verb.DELETE]

    def stored(self) -> list[str]:
        return [name for name, _ in self.store.list_files(self.root)]


@pytest.fixture
def world(on_s3: Rlrun, api: FakeCluster, store: Store, bucket: str, tmp_path: Path) -> Iterator[World]:
    """A deleted run, a finished one, an active one, a deleted one whose checkpoint has its object, an unknown one."""
    seen = World(api, store, S3Uri(bucket, f"gc/{tmp_path.name}"), on_s3)
    for uid in (GONE, DONE, LIVE, KEPT):
        layout = seen.layout(uid)
        store.put_bytes(layout.run_json, b"{}")
        store.put_bytes(layout.policy(1, "deadbeef") / "adapter_model.safetensors", b"p" * 10)
        store.upload_artifact({"a": b"x" * 20}, layout.checkpoint(10), ArtifactKind.checkpoint)
        store.put_bytes(layout.checkpoint(20) / "torn", b"t" * 30)
    labels = {RUN_UID_LABEL: GONE, MANAGED_BY_LABEL: FIELD_MANAGER}
    job = cluster_object(JOB, "gone-orchestrator-a1", "uid-job")
    job["metadata"]["labels"] = labels
    for obj in (
        run("done", DONE, "Completed"),
        run("live", LIVE, "Running"),
        artifact(RLCHECKPOINT, "kept-10", seen.layout(KEPT).checkpoint(10)),
        artifact(RLADAPTER, "lost-10", seen.layout(KEPT).adapter(10)),
        job,
    ):
        api.put(obj)
    api.put({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": CLUSTER}})
    write_mark(store, seen.root, CLUSTER, replace=False)
    record = RunTombstone(artifact_policy=ArtifactPolicy.delete, retained=["checkpoints/step-000010"])
    store.put_bytes(run_tombstone(seen.root, "team", KEPT), record.to_bytes())
    seen.bury(GONE)
    store.put_bytes(seen.layout(LOST).run_json, b"{}")
    api.answers["list secrets"] = [FORBIDDEN]
    store.put_bytes(seen.root / "environments/me/pkg/1.0/pkg.whl", b"w")
    yield seen
    store.delete_prefix(seen.root)


EXPECTED = [
    ("RunGone", f"team/{GONE}"),
    ("NoManifest", f"team/{DONE}/checkpoints/step-000020"),
    ("RunFinished", f"team/{DONE}/policy"),
    ("NoManifest", f"team/{KEPT}/checkpoints/step-000020"),
    ("RunFinished", f"team/{KEPT}/policy"),
    ("FilesGone", "lost-10"),
    ("RunGone", "gone-orchestrator-a1"),
]


def test_listing_deletes_nothing(world: World) -> None:
    before = world.stored()
    assert world.names("--older-than", "0s") == EXPECTED
    answer = world.gc("--older-than", "0s")
    assert (answer.code, world.stored(), world.deleted) == (0, before, [])
    header, first, *_ = answer.out.splitlines()
    assert header.split() == ["KIND", "NAMESPACE", "NAME", "SIZE", "AGE", "REASON"]
    assert first.split()[:3] == ["Folder", "team", f"{world.root}/team/{GONE}"]
    assert "Items in all namespaces: 7" in answer.err
    assert "rlrun gc --delete" in answer.err
    assert "secrets were skipped" in answer.err
    assert "Items kept because they are unknown to this cluster and have no tombstone: 1." in answer.err
    (lost,) = json.loads(world.gc("--older-than", "0s", "-o", "json").out)["unknown"]
    assert (lost["reason"], lost["name"]) == ("RunUnknown", f"{world.root}/team/{LOST}")


@pytest.mark.parametrize("mark", [None, "another-cluster"])
def test_a_cluster_that_the_bucket_is_not_marked_for_deletes_nothing(world: World, mark: str | None) -> None:
    """A second cluster on the same prefix, and one that was built again, have other UIDs than the mark."""
    if mark is None:
        world.store.delete_prefix(world.root / "rlrun.installation")
    else:
        write_mark(world.store, world.root, mark, replace=True)
    before = world.stored()
    answer = world.gc("--older-than", "0s", "--delete", "--yes")
    assert answer.code == 1
    assert "so nothing is deleted" in answer.err
    assert "rlrun gc --adopt" in answer.err
    assert (world.stored(), world.deleted) == (before, [])
    assert world.gc("--older-than", "0s").code == 0, "looking is allowed"
    unmarked = world.gc("--mark-deleted", f"team/{LOST}", "--yes")
    assert (unmarked.code, world.stored()) == (1, before)


def test_an_administrator_adopts_the_bucket_of_a_cluster_that_is_no_more(world: World) -> None:
    write_mark(world.store, world.root, "another-cluster", replace=True)
    refused = world.gc("--adopt", input="n\n")
    assert refused.code == 1
    assert "another-cluster" in refused.err
    assert world.gc("--adopt", "--yes").code == 0
    mark = read_mark(world.store, world.root)
    assert mark is not None
    assert mark.cluster == CLUSTER
    assert world.gc("--older-than", "0s", "--delete", "--yes").code == 0


def test_a_sweep_of_more_than_a_tenth_of_the_runs_needs_a_flag(world: World) -> None:
    for number in range(0x10, 0x14):
        uid = f"{number:08x}-0000-4000-8000-000000000000"
        world.store.put_bytes(world.layout(uid).run_json, b"{}")
        world.bury(uid)
    before = world.stored()
    answer = world.gc("--older-than", "0s", "--delete", "--yes")
    assert answer.code == 1
    assert "of 9 runs would lose files, which is more than a tenth" in answer.err
    assert (world.stored(), world.deleted) == (before, [])
    assert world.gc("--older-than", "0s", "--delete", "--yes", "--allow-mass-deletion").code == 0
    assert not any(name.startswith(f"team/{GONE}/") for name in world.stored())


def test_an_unknown_run_becomes_garbage_when_an_administrator_says_that_it_was_deleted(world: World) -> None:
    assert world.gc("--mark-deleted", f"team/{LOST}", "--yes").code == 0
    assert ("RunGone", f"team/{LOST}") in world.names("--older-than", "0s")
    assert ("RunGone", f"team/{LOST}") not in world.names("--older-than", "1h"), "the age counts from the mark"
    for run_name, code in ((f"team/{LIVE}", 1), (f"other/{LOST}", 1), ("team", 2), (f"team/{LOST}/x", 2)):
        assert world.gc("--mark-deleted", run_name, "--yes").code == code
    assert world.gc("--mark-deleted", f"team/{LOST}", "--delete").code == 2


def test_artifacts_with_objects_outlive_a_run_that_is_marked_as_deleted(world: World) -> None:
    world.store.delete_prefix(world.root / "rlrun.deleted")
    assert world.gc("--mark-deleted", f"team/{KEPT}", "--yes").code == 0
    assert world.gc("--older-than", "0s", "--delete", "--yes").code == 0
    assert world.store.is_complete(world.layout(KEPT).checkpoint(10))


def test_a_tombstone_that_is_not_readable_deletes_no_artifact(world: World) -> None:
    world.store.put_bytes(run_tombstone(world.root, "team", GONE), b"{")
    answer = world.gc("--older-than", "0s", "-o", "json")
    assert "is not a valid tombstone of this version" in answer.err
    assert ("NoManifest", f"team/{GONE}/checkpoints/step-000020") in world.names("--older-than", "0s")
    assert not any(name == f"team/{GONE}" for _, name in world.names("--older-than", "0s"))


def test_young_items_are_not_listed(world: World) -> None:
    assert world.names() == []
    assert world.names("--older-than", "1h") == []


def test_delete_removes_exactly_the_listed_items(world: World) -> None:
    expected = [k for k in world.stored() if not k.startswith(f"team/{GONE}/")]
    expected = [k for k in expected if k.startswith(f"team/{LIVE}/") or not ("/policy/" in k or "/torn" in k)]
    answer = world.gc("--older-than", "0s", "--delete", "--yes", "-o", "json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)["items"]
    assert [i["removed"] for i in found] == [True] * 7
    assert world.stored() == expected
    assert world.deleted == ["lost-10", "gone-orchestrator-a1"]
    assert world.store.is_complete(world.layout(KEPT).checkpoint(10))
    assert world.names("--older-than", "0s") == [("DeletionDone", f"rlrun.deleted/team/{GONE}/run.json")]
    assert world.gc("--older-than", "0s", "--delete", "--yes").code == 0
    assert not any(GONE in name for name in world.stored())
    assert "No unreferenced items in all namespaces" in world.gc("--older-than", "0s").err


@pytest.mark.parametrize(("answer", "code", "message"), [("n\n", 1, "nothing was changed"), ("", 2, "--yes")])
def test_deletion_needs_confirmation(world: World, answer: str, code: int, message: str) -> None:
    before = world.stored()
    done = world.gc("--older-than", "0s", "--delete", input=answer)
    assert done.code == code
    assert message in done.err
    assert "Permanently delete all listed items (7" in done.err
    assert (world.stored(), world.deleted) == (before, [])


def test_confirmed_deletion(world: World) -> None:
    done = world.gc("--older-than", "0s", "--delete", input="y\n")
    assert (done.code, "Deleted: 7 of 7 items" in done.err) == (0, True)


def test_nothing_is_deleted_without_the_complete_list_of_runs(world: World) -> None:
    before = world.stored()
    world.cluster.answers["list rlruns"] = [ApiError(410, "Expired", "the continue token is too old")]
    for options in ([], ["--delete", "--yes"]):
        answer = world.gc("--older-than", "0s", *options)
        assert answer.code == 1
        assert "410" in answer.err
    assert (world.stored(), world.deleted) == (before, [])


def test_an_item_referenced_again_is_kept(world: World) -> None:
    before = world.cluster.all("RLRun")
    later = [*before, run("back", GONE, "Running")]
    world.cluster.answers["list rlruns"] = [{"items": before}, {"items": later}]
    answer = world.gc("--older-than", "0s", "--delete", "--yes")
    assert answer.code == 1
    assert "the item has changed, so it is kept" in answer.err
    assert f"team/{GONE}/run.json" in world.stored()
    assert world.deleted == ["lost-10"]


def test_one_failed_deletion_does_not_prevent_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    delete = world.store.delete_prefix

    def broken(uri: S3Uri) -> int:
        if GONE in uri.key:
            raise Unreachable("S3 is away")
        return delete(uri)

    monkeypatch.setattr(world.store, "delete_prefix", broken)
    answer = world.gc("--older-than", "0s", "--delete", "--yes")
    assert answer.code == 1
    assert "not deleted: 1 of 7 items" in answer.err
    assert "S3 is away" in answer.err
    assert len(world.deleted) == 2


def test_an_s3_outage_deletes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(uri: S3Uri) -> Iterator[None]:
        raise Unreachable("S3 is away")

    monkeypatch.setattr(world.store, "walk", away)
    answer = world.gc("--older-than", "0s", "--delete", "--yes")
    assert answer.code == 1
    assert "S3 is away" in answer.err
    assert world.deleted == []


def test_unfinished_uploads(world: World, store: Store) -> None:
    key = world.layout(GONE).checkpoint(30).key + "/big"
    begin = store._s3.create_multipart_upload
    ids = {name: begin(Bucket=world.root.bucket, Key=name)["UploadId"] for name in (key, key.replace(GONE, LIVE))}
    (upload, _) = sorted(store.uploads(world.root), key=lambda u: u.key != key)
    assert upload.upload_id == ids[key]
    assert datetime.now(UTC) - upload.initiated < timedelta(minutes=5)
    assert world.names("--older-than", "1h") == []
    assert ("UploadUnfinished", f"team/{GONE}/checkpoints/step-000030/big") in world.names("--older-than", "0s")
    assert world.gc("--older-than", "0s", "--delete", "--yes").code == 0
    assert [u.key for u in store.uploads(world.root)] == [key.replace(GONE, LIVE)], "the run that lives is uploading"
    store.abort_upload(world.root.bucket, upload)


def test_one_namespace(world: World) -> None:
    other = RunLayout(world.root / "other" / GONE)
    world.store.put_bytes(other.run_json, b"{}")
    record = RunTombstone(artifact_policy=ArtifactPolicy.delete).to_bytes()
    world.store.put_bytes(run_tombstone(world.root, "other", GONE), record)
    assert world.names("--older-than", "0s", "-n", "other") == [("RunGone", f"other/{GONE}")]
    listed = {request.kind.kind: request.namespace for request in world.cluster.requests if request.verb is Verb.LIST}
    everywhere = {"RLRun", "RLCheckpoint", "RLAdapter"}
    assert {listed.pop(kind) for kind in everywhere} == {None}, "runs of all namespaces may need the files"
    assert set(listed.values()) == {"other"}


def test_a_run_of_another_namespace_keeps_the_checkpoint_that_it_starts_from(world: World) -> None:
    starting = run("starting", "00000009-0000-4000-8000-000000000000", "Running")
    starting["metadata"]["namespace"] = "other"
    starting["spec"] = {"checkpointId": f"team/first-step-000010-{GONE[:8]}"}
    world.cluster.put(starting)
    assert ("RunGone", f"team/{GONE}") not in world.names("--older-than", "0s", "-n", "team")


@pytest.mark.parametrize("text", ["", "24", "h", "-1h", "1.5h", "1w", "9999999d"])
def test_an_invalid_age_is_rejected(world: World, text: str) -> None:
    answer = world.gc("--older-than", text)
    assert answer.code == 2
    assert "--older-than" in answer.err


def test_ages() -> None:
    assert [parse_age(t).total_seconds() for t in ("0s", "90m", "24h", "7d")] == [0, 5400, 86400, 604800]


def test_the_bucket_is_required(on_s3: Rlrun) -> None:
    answer = on_s3("gc")
    assert answer.code == 2
    assert "RLRUN_S3_BUCKET" in answer.err


def test_an_unknown_bucket_is_an_error(store: Store) -> None:
    with pytest.raises(StoreError):
        store.uploads(S3Uri("no-such-bucket-here", "x"))
