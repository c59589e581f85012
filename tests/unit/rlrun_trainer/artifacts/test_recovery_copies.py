"""A copy that is being deleted never appears complete."""

import pytest
from rlrun.storage.layout import MANIFEST, RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import Unreachable
from rlrun_trainer.artifacts.recovery_copies import RecoveryCopies

from tests.support.fake_s3 import InMemoryStore

LAYOUT = RunLayout(S3Uri.parse("s3://bucket/runs/team/uid-1"))


def store_with(*steps: int) -> InMemoryStore:
    store = InMemoryStore()
    for step in steps:
        store.publish(str(LAYOUT.recovery_copy(step)), {"a": b"a", "b": b"b"}, ArtifactKind.recovery)
    return store


def test_only_the_newest_copies_after_the_checkpoint_are_tried() -> None:
    store = store_with(*range(1, 11))
    store.objects[f"{LAYOUT.recovery}/stray/x"] = b""
    copies = RecoveryCopies(store, LAYOUT)
    assert copies.newest_from(0) == [10, 9, 8, 7]
    assert copies.newest_from(9) == [10, 9]
    assert copies.newest_from(11) == []


def test_an_interrupted_deletion_leaves_no_manifest_and_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_with(1, 2, 3)
    copies, delete = RecoveryCopies(store, LAYOUT), store._delete
    batches: list[list[str]] = []

    def cut_off(uri: S3Uri, keys: list[str]) -> None:
        batches.append(keys)
        if len(batches) > 1:
            raise Unreachable("away")
        delete(uri, keys)

    monkeypatch.setattr(store, "_delete", cut_off)
    copies.prune([1, 2, 3], 0)
    place = LAYOUT.recovery_copy(1)
    assert batches[0] == [(place / MANIFEST).key]
    assert store.read_manifest(place) is None
    assert [name for name, _ in store.list_files(place)] == ["a", "b"]
    monkeypatch.setattr(store, "_delete", delete)
    copies.prune([1, 2, 3], 0)
    assert store.list_folders(LAYOUT.recovery) == ["step-000002", "step-000003"]


def test_copies_of_another_trainer_that_are_newer_stay() -> None:
    store = store_with(1, 2, 3, 7)
    RecoveryCopies(store, LAYOUT).prune([2, 3], 0)
    assert store.list_folders(LAYOUT.recovery) == ["step-000002", "step-000003", "step-000007"]


def test_a_first_copy_replaces_those_of_former_trainers() -> None:
    store = store_with(1, 2, 3)
    RecoveryCopies(store, LAYOUT).prune([3], 1)
    assert store.list_folders(LAYOUT.recovery) == ["step-000003"]
