"""Uploads and downloads that fail at any call, against a real S3 server."""

import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from rlrun.storage import store as store_module
from rlrun.storage import transfer as transfer_module
from rlrun.storage.layout import MANIFEST, S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import Store, StoreError
from rlrun.storage.transfer import Transfer

from tests.support.s3_faults import Crash, Faults
from tests.support.seaweedfs import S3Server

Content = dict[str, bytes]
PART = 5 * 1024**2
"""S3 takes no smaller ones, except for the last."""
OLDER: Content = {"a": b"older", "gone": b"g", "sub/b": b"older"}
NEWER: Content = {"a": b"newer", "sub/b": b"", "c": b"newer"}
BIG: Content = {"a": b"newer", "big": os.urandom(PART + 7)}
MOST_CALLS = 60


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_module, "PART_BYTES", PART)
    monkeypatch.setattr(store_module, "PART_BYTES", PART)


@pytest.fixture
def victim(s3_server: S3Server) -> Iterator[Store]:
    """The store that things happen to."""
    store = s3_server.store()
    yield store
    store.close()


def folder_of(content: Content, where: Path) -> Path:
    for name, data in content.items():
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return where


def downloaded(store: Store, place: S3Uri, room: Path) -> Content:
    dest = room / uuid.uuid4().hex
    store.download(place, dest)
    files = [path for path in dest.rglob("*") if path.is_file() and path.name != MANIFEST]
    return {path.relative_to(dest).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("how", ["silence", "lost answer", "500", "crash", "crash after"])
@pytest.mark.parametrize(
    ("before", "content", "most"),
    # Calls without a failure: a look for a manifest, objects (those in parts: a look for parts that were left behind,
    # begin, parts, end), the manifest; where another one is, its deletion; the same again is a look.
    [(None, BIG, 8), (None, NEWER, 5), (OLDER, NEWER, 6), (NEWER, NEWER, 1)],
    ids=["in parts", "new", "over another", "again"],
)
def test_after_a_failure_at_any_call_what_has_a_manifest_is_whole(
    store: Store,
    s3_server: S3Server,
    victim: Store,
    tmp_path: Path,
    how: str,
    before: Content | None,
    content: Content,
    most: int,
) -> None:
    source = folder_of(content, tmp_path / "source")
    victim._transfer = Transfer(victim._s3, victim.endpoint, concurrency=1)
    faults = Faults(victim._s3, how)
    for at in range(1, MOST_CALLS):
        place = S3Uri(s3_server.bucket, f"f/{uuid.uuid4().hex}")
        if before is not None:
            store.upload_artifact(before, place, ArtifactKind.checkpoint, step=1)
        faults.arm(at)
        try:
            victim.upload_artifact(source, place, ArtifactKind.checkpoint, step=1)
            failed = False
        except (StoreError, Crash):
            failed = True
        whole = store.read_manifest(place) is not None
        assert whole or failed
        if whole:
            assert store.is_complete(place)
            assert downloaded(store, place, tmp_path) in (before, content)
        if how == "silence":
            assert store.uploads(place) == []
        store.upload_artifact(source, place, ArtifactKind.checkpoint, step=1)
        assert store.is_complete(place)
        assert downloaded(store, place, tmp_path) == content
        assert store.uploads(place) == []
        if not faults.struck:
            assert not failed
            assert at == most + 1
            return
        assert failed
    raise AssertionError("an upload with no end")


@pytest.mark.parametrize("how", ["silence", "500"])
def test_requests_side_by_side_fail_as_those_one_by_one(
    store: Store, s3_server: S3Server, victim: Store, tmp_path: Path, how: str
) -> None:
    content = BIG | NEWER | {"bigger": BIG["big"][::-1]}
    faults = Faults(victim._s3, how)
    for at in range(1, MOST_CALLS):
        place = S3Uri(s3_server.bucket, f"f/{uuid.uuid4().hex}")
        faults.arm(at)
        try:
            victim.upload_artifact(content, place, ArtifactKind.checkpoint)
        except StoreError:
            assert faults.struck
            assert store.read_manifest(place) is None or how == "500"
            assert store.uploads(place) == [] or how == "500"
        store.upload_artifact(content, place, ArtifactKind.checkpoint)
        assert downloaded(store, place, tmp_path) == content
        if not faults.struck:
            return
    raise AssertionError("an upload with no end")


@pytest.mark.parametrize("how", ["silence", "500"])
def test_a_download_that_fails_at_any_call_leaves_nothing(
    store: Store, s3_server: S3Server, victim: Store, tmp_path: Path, how: str
) -> None:
    place = S3Uri(s3_server.bucket, f"f/{uuid.uuid4().hex}")
    store.upload_artifact(BIG, place, ArtifactKind.checkpoint)
    victim._transfer = Transfer(victim._s3, victim.endpoint, concurrency=1)
    faults = Faults(victim._s3, how)
    for at in range(1, MOST_CALLS):
        faults.arm(at)
        try:
            assert downloaded(victim, place, tmp_path / "room") == BIG
        except StoreError:
            assert faults.struck
            assert list((tmp_path / "room").glob("*")) == list((tmp_path / "room").glob(".*")) == []
        else:
            # One request that failed is asked for again where only its body was to come; all others are told.
            assert not faults.struck or how == "silence"
            if not faults.struck:
                return
            for path in (tmp_path / "room").iterdir():
                path.rename(tmp_path / path.name)
    raise AssertionError("a download with no end")


def test_parts_of_many_callers_stay_within_the_bound(s3_server: S3Server, store: Store, tmp_path: Path) -> None:
    place = S3Uri(s3_server.bucket, f"f/{uuid.uuid4().hex}")
    content = {f"{number}": os.urandom(2 * PART + number) for number in range(3)}
    store.upload_artifact(content, place, ArtifactKind.checkpoint)
    found: list[Content] = []
    # More callers than requests at a time, each of which wants several: nobody may wait for ever.
    store._transfer = Transfer(store._s3, store.endpoint, concurrency=2)
    threads = [threading.Thread(target=lambda: found.append(downloaded(store, place, tmp_path))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [content] * 6
