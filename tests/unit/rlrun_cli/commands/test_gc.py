"""`rlrun gc` against a real S3 and a cluster of lists."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rlrun.garbage_collection.planner import GarbageItem
from rlrun.garbage_collection.report import parse_age
from rlrun.garbage_collection.snapshot import Artifact, Child, Run
from rlrun.kube.errors import ApiError
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import Store, StoreError, Unreachable

from tests.unit.rlrun_cli.conftest import FakeCluster, Rlrun

GONE, DONE, LIVE, KEPT = (f"{n:08x}-0000-4000-8000-000000000000" for n in range(1, 5))
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Lists:
    """Source of the cluster's objects."""

    run_list: list[Run] = field(default_factory=lambda: [Run(DONE, True), Run(LIVE, False)])
    artifact_list: list[Artifact] = field(default_factory=list)
    child_list: list[Child] = field(default_factory=list)
    deleted: list[GarbageItem] = field(default_factory=list)
    run_lists: int = 0
    problem: ApiError | None = None
    asked: list[str | None] = field(default_factory=list)

    def runs(self, namespace: str | None) -> list[Run]:
        self.run_lists += 1
        self.asked.append(namespace)
        if self.problem:
            raise self.problem
        return list(self.run_list)

    def artifacts(self, namespace: str | None) -> list[Artifact]:
        return list(self.artifact_list)

    def children(self, namespace: str | None) -> tuple[list[Child], list[str]]:
        return list(self.child_list), ["secrets were skipped: forbidden"]

    def delete(self, item: GarbageItem) -> None:
        self.deleted.append(item)


@dataclass
class World:
    lists: Lists
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

    def stored(self) -> list[str]:
        return [name for name, _ in self.store.list_files(self.root)]


@pytest.fixture
def world(
    on_s3: Rlrun, api: FakeCluster, store: Store, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """A deleted run, a finished one, an active one, and a deleted one whose checkpoint object remains."""
    lists = Lists()
    monkeypatch.setattr(api, "garbage_source", lambda: lists, raising=False)
    seen = World(lists, store, S3Uri(bucket, f"gc/{tmp_path.name}"), on_s3)
    for uid in (GONE, DONE, LIVE, KEPT):
        layout = seen.layout(uid)
        store.put_bytes(layout.run_json, b"{}")
        store.put_bytes(layout.policy(1, "deadbeef") / "adapter_model.safetensors", b"p" * 10)
        store.upload_artifact({"a": b"x" * 20}, layout.checkpoint(10), ArtifactKind.checkpoint)
        store.put_bytes(layout.checkpoint(20) / "torn", b"t" * 30)
    kept = str(seen.layout(KEPT).checkpoint(10))
    lists.artifact_list = [
        Artifact("RLCheckpoint", "team", "kept-10", KEPT, kept, LONG_AGO),
        Artifact("RLAdapter", "team", "lost-10", KEPT, str(seen.layout(KEPT).adapter(10)), LONG_AGO),
    ]
    lists.child_list = [Child("Job", "team", "gone-orchestrator-a1", GONE, LONG_AGO)]
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
    assert (answer.code, world.stored(), world.lists.deleted) == (0, before, [])
    header, first, *_ = answer.out.splitlines()
    assert header.split() == ["KIND", "NAMESPACE", "NAME", "SIZE", "AGE", "REASON"]
    assert first.split()[:3] == ["Folder", "team", f"{world.root}/team/{GONE}"]
    assert "7 items in all namespaces" in answer.err
    assert "rlrun gc --delete" in answer.err
    assert "secrets were skipped" in answer.err


def test_young_items_are_not_listed(world: World) -> None:
    assert world.names() == [("FilesGone", "lost-10"), ("RunGone", "gone-orchestrator-a1")]
    assert world.names("--older-than", "1h") == [("FilesGone", "lost-10"), ("RunGone", "gone-orchestrator-a1")]


def test_delete_removes_exactly_the_listed_items(world: World) -> None:
    expected = [k for k in world.stored() if not k.startswith(f"team/{GONE}/")]
    expected = [k for k in expected if k.startswith(f"team/{LIVE}/") or not ("/policy/" in k or "/torn" in k)]
    answer = world.gc("--older-than", "0s", "--delete", "--yes", "-o", "json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)["items"]
    assert [i["removed"] for i in found] == [True] * 7
    assert world.stored() == expected
    assert [d.name for d in world.lists.deleted] == ["lost-10", "gone-orchestrator-a1"]
    assert world.store.is_complete(world.layout(KEPT).checkpoint(10))
    world.lists.artifact_list.pop()
    world.lists.child_list.clear()
    assert world.names("--older-than", "0s") == []
    assert "No unreferenced items in all namespaces" in world.gc("--older-than", "0s").err


@pytest.mark.parametrize(("answer", "code", "message"), [("n\n", 1, "Nothing was deleted"), ("", 2, "--yes")])
def test_deletion_needs_confirmation(world: World, answer: str, code: int, message: str) -> None:
    before = world.stored()
    done = world.gc("--older-than", "0s", "--delete", input=answer)
    assert done.code == code
    assert message in done.err
    assert "Permanently delete 7 items" in done.err
    assert (world.stored(), world.lists.deleted) == (before, [])


def test_confirmed_deletion(world: World) -> None:
    done = world.gc("--older-than", "0s", "--delete", input="y\n")
    assert (done.code, "7 of 7 items deleted" in done.err) == (0, True)


def test_nothing_is_deleted_without_the_complete_list_of_runs(world: World) -> None:
    before = world.stored()
    world.lists.problem = ApiError(410, "Expired", "the continue token is too old", action="list rlruns")
    for options in ([], ["--delete", "--yes"]):
        answer = world.gc("--older-than", "0s", *options)
        assert answer.code == 1
        assert "410" in answer.err
    assert (world.stored(), world.lists.deleted) == (before, [])


def test_an_item_referenced_again_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = world.lists.runs

    def later(namespace: str | None) -> list[Run]:
        return runs(namespace) + ([Run(GONE, False)] if world.lists.run_lists > 1 else [])

    monkeypatch.setattr(world.lists, "runs", later)
    answer = world.gc("--older-than", "0s", "--delete", "--yes")
    assert answer.code == 1
    assert "it has changed meanwhile" in answer.err
    assert f"team/{GONE}/run.json" in world.stored()
    assert [d.name for d in world.lists.deleted] == ["lost-10"]


def test_one_failed_deletion_does_not_prevent_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    delete = world.store.delete_prefix

    def broken(uri: S3Uri) -> int:
        if GONE in uri.key:
            raise Unreachable("S3 is away")
        return delete(uri)

    monkeypatch.setattr(world.store, "delete_prefix", broken)
    answer = world.gc("--older-than", "0s", "--delete", "--yes")
    assert answer.code == 1
    assert "1 of 7 items could not be deleted" in answer.err
    assert "S3 is away" in answer.err
    assert len(world.lists.deleted) == 2


def test_an_s3_outage_deletes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(uri: S3Uri) -> Iterator[None]:
        raise Unreachable("S3 is away")

    monkeypatch.setattr(world.store, "walk", away)
    answer = world.gc("--older-than", "0s", "--delete", "--yes")
    assert answer.code == 1
    assert "S3 is away" in answer.err
    assert world.lists.deleted == []


def test_unfinished_uploads(world: World, store: Store) -> None:
    key = world.layout(GONE).checkpoint(30).key + "/big"
    begin = store._s3.create_multipart_upload
    ids = {name: begin(Bucket=world.root.bucket, Key=name)["UploadId"] for name in (key, key.replace(GONE, LIVE))}
    (upload, _) = sorted(store.uploads(world.root), key=lambda u: u.key != key)
    assert upload.upload_id == ids[key]
    assert datetime.now(UTC) - upload.initiated < timedelta(minutes=5)
    assert world.names("--older-than", "1h") == [("FilesGone", "lost-10"), ("RunGone", "gone-orchestrator-a1")]
    assert ("UploadUnfinished", f"team/{GONE}/checkpoints/step-000030/big") in world.names("--older-than", "0s")
    assert world.gc("--older-than", "0s", "--delete", "--yes").code == 0
    assert [u.key for u in store.uploads(world.root)] == [key.replace(GONE, LIVE)], "the run that lives is uploading"
    store.abort_upload(world.root.bucket, upload)


def test_one_namespace(world: World) -> None:
    other = RunLayout(world.root / "other" / GONE)
    world.store.put_bytes(other.run_json, b"{}")
    found = world.names("--older-than", "0s", "-n", "other")
    assert found[0] == ("RunGone", f"other/{GONE}")
    assert not any(name.startswith("team/") for _, name in found)
    assert world.lists.asked == ["other"]


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
