"""The store against a real S3 server, and against one in memory where that must fail at a given moment."""

import asyncio
import hashlib
import os
import socket
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError
from rlrun.api.base.s3_connection import S3Connection
from rlrun.storage import store as store_module
from rlrun.storage.layout import MANIFEST, S3Uri
from rlrun.storage.manifest import MAX_MANIFEST_BYTES, ArtifactKind, FileEntry, Manifest
from rlrun.storage.store import (
    PART_BYTES,
    AccessDenied,
    AlreadyExists,
    ArtifactExists,
    BucketMissing,
    Corrupt,
    NotFound,
    ObjectTooLarge,
    RequestLimits,
    Store,
    StoreError,
    Unreachable,
    build_manifest,
)

from tests.support.fake_s3 import FakeS3, store_on
from tests.support.seaweedfs import S3Server
from tests.support.stub_s3 import BUCKET, stub_s3


@pytest.fixture
def place(s3_server: S3Server) -> S3Uri:
    return S3Uri(s3_server.bucket, f"t/{uuid.uuid4().hex}")


def test_bytes_are_read_as_last_written(store: Store, place: S3Uri) -> None:
    store.put_bytes(place / "a/b.json", b"one")
    store.put_bytes(place / "a/b.json", b"two")
    assert store.get_bytes(place / "a/b.json") == b"two"


@pytest.mark.parametrize(
    ("start", "length", "found"),
    [(0, 3, b"012"), (7, 9, b"789"), (None, 4, b"6789"), (None, 99, b"0123456789"), (10, 1, b""), (50, 5, b"")],
)
def test_a_range_of_an_object(store: Store, place: S3Uri, start: int | None, length: int, found: bytes) -> None:
    store.put_bytes(place / "a", b"0123456789")
    assert store.get_range(place / "a", start, length) == found


def test_a_range_of_an_empty_object_is_empty(store: Store, place: S3Uri) -> None:
    store.put_bytes(place / "a", b"")
    assert store.get_range(place / "a", None, 10) == b""
    with pytest.raises(NotFound):
        store.get_range(place / "b", None, 10)


def test_missing_object_is_not_found_and_named(store: Store, place: S3Uri) -> None:
    with pytest.raises(NotFound) as caught:
        store.get_bytes(place / "nothing")
    assert caught.value.problem.reason == "S3NotFound"
    assert str(place / "nothing") in caught.value.problem.message


def test_artifact_round_trip_keeps_every_fact(store: Store, place: S3Uri, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "a.bin").write_bytes(os.urandom(1000))
    (source / "sub/b.txt").write_text("text")
    manifest = store.upload_artifact(
        source,
        place,
        ArtifactKind.checkpoint,
        run_name="r",
        run_uid="u",
        namespace="n",
        model="m",
        step=40,
        policy_version=40,
        details={"rank": 8, "reward": 0.5},
    )
    assert [f.name for f in manifest.files] == ["a.bin", "sub/b.txt"]
    assert store.read_manifest(place) == manifest
    assert store.is_complete(place)
    assert store.download(place, tmp_path / "deep/dest") == manifest
    dest = tmp_path / "deep/dest"
    assert (dest / "a.bin").read_bytes() == (source / "a.bin").read_bytes()
    assert (dest / "sub/b.txt").read_text() == "text"
    assert [p.name for p in dest.parent.iterdir()] == ["dest"]


def test_download_replaces_an_older_folder(store: Store, place: S3Uri, tmp_path: Path) -> None:
    store.upload_artifact({"new": b"1"}, place, ArtifactKind.model)
    dest = tmp_path / "dest"
    dest.mkdir()
    (dest / "old").write_text("old")
    store.download(place, dest)
    assert sorted(p.name for p in dest.iterdir()) == [MANIFEST, "new"]
    assert [p.name for p in tmp_path.iterdir()] == ["dest"]


def test_many_parts_come_back_whole(store: Store, place: S3Uri, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    data = os.urandom(1024**2) * 40 + b"end"
    assert len(data) > 2 * PART_BYTES
    (source / "big").write_bytes(data)
    store.upload_artifact(source, place, ArtifactKind.model)
    store.download(place, tmp_path / "dest")
    assert (tmp_path / "dest/big").read_bytes() == data


def test_files_are_hashed_at_the_same_time_and_listed_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"model-0000{number}-of-00004.safetensors" for number in range(1, 5)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    together = threading.Barrier(len(names), timeout=30)
    hashed = store_module._hash_file

    def meeting(name: str, path: Path) -> FileEntry:
        together.wait()
        return hashed(name, path)

    monkeypatch.setattr(store_module, "_hash_file", meeting)
    empty = Manifest(kind=ArtifactKind.policy, files=[], created_at=datetime.now(UTC))
    manifest = build_manifest(tmp_path, empty)
    assert [(file.name, file.sha256) for file in manifest.files] == [
        (name, hashlib.sha256(name.encode()).hexdigest()) for name in names
    ]


def test_upload_is_idempotent_and_replaces_other_content(store: Store, place: S3Uri) -> None:
    first = store.upload_artifact({"a": b"1"}, place, ArtifactKind.adapter, step=1)
    assert store.upload_artifact({"a": b"1"}, place, ArtifactKind.adapter, step=1) == first
    second = store.upload_artifact({"a": b"2"}, place, ArtifactKind.adapter, step=1)
    assert second.files != first.files
    assert store.read_manifest(place) == second


class IgnoresConditions(FakeS3):
    """A server that stores an object whatever If-None-Match says."""

    def put_object(self, **arguments: Any) -> dict[str, Any]:
        return super().put_object(**arguments | {"IfNoneMatch": ""})

    def complete_multipart_upload(self, **arguments: Any) -> dict[str, Any]:
        return super().complete_multipart_upload(**arguments | {"IfNoneMatch": ""})


LARGE = 2 * PART_BYTES + 5


def weights(life: int) -> dict[str, bytes]:
    """Files of one step, which a trainer that starts again computes otherwise."""
    seed = bytes([life])
    return {"adapter": seed * 100, "large": seed * LARGE, "rng": seed, "trainer.json": b"the same"}


def save_once(client: FakeS3, files: dict[str, bytes], store: Store | None = None) -> Manifest:
    to = S3Uri("bucket", "checkpoints/step-1")
    return (store or store_on(client)).upload_artifact(files, to, ArtifactKind.checkpoint, step=1, once=True)


@pytest.mark.parametrize("client", [FakeS3(), IgnoresConditions()], ids=lambda client: type(client).__name__)
def test_a_complete_artifact_is_not_replaced_on_any_server(client: FakeS3) -> None:
    first = save_once(client, weights(1))
    before = dict(client.data)
    assert save_once(client, weights(1)) == first
    with pytest.raises(ArtifactExists, match="contains a different complete artifact, which is not replaced"):
        save_once(client, weights(2))
    client.data["checkpoints/step-1/manifest.json"] = b"garbage"
    with pytest.raises(ArtifactExists):
        save_once(client, weights(2))
    assert client.data == before | {"checkpoints/step-1/manifest.json": b"garbage"}
    assert client.uploads == {}


class CutOff(FakeS3):
    """A server that is lost at its nth write, which it has made or not."""

    def __init__(self, at: int, *, is_made: bool) -> None:
        super().__init__()
        self.left, self.is_made = at, is_made

    def _write(self, write: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        self.left -= 1
        if self.left == 0 and not self.is_made:
            raise EndpointConnectionError(endpoint_url="http://s3")
        answer = write(**arguments)
        if self.left == 0:
            raise EndpointConnectionError(endpoint_url="http://s3")
        return answer

    def put_object(self, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._write(super().put_object, arguments)
        return answer

    def complete_multipart_upload(self, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._write(super().complete_multipart_upload, arguments)
        return answer


WRITES = 5
"""Writes that end with an object: three small files, a large one and the manifest."""


@pytest.mark.parametrize("is_made", [False, True], ids=["not made", "made"])
@pytest.mark.parametrize("at", range(1, WRITES + 1))
def test_an_upload_that_is_cut_off_at_any_write_is_made_again(at: int, is_made: bool, tmp_path: Path) -> None:
    """By the same process with the same bytes, or by one that started again with others."""
    undisturbed = FakeS3()
    save_once(undisturbed, weights(1))
    for life in (1, 2):
        client = CutOff(at, is_made=is_made)
        with pytest.raises(Unreachable):
            save_once(client, weights(1))
        before = dict(client.data)
        if at == WRITES and is_made and life == 2:
            with pytest.raises(ArtifactExists):
                save_once(client, weights(life))
            continue
        again = save_once(client, weights(life))
        assert client.data.items() >= before.items(), "nothing is replaced or deleted"
        assert client.uploads == {}
        if life == 1:
            assert client.data.keys() == undisturbed.data.keys()
        assert save_once(client, weights(life)) == again
        store, place = store_on(client), S3Uri("bucket", "checkpoints/step-1")
        assert store.is_complete(place)
        store.download(place, tmp_path / f"life-{life}")
        for name, content in weights(life).items():
            assert (tmp_path / f"life-{life}" / name).read_bytes() == content


def test_the_second_of_two_trainers_of_one_step_leaves_the_artifact_of_the_first() -> None:
    """A pod on a lost node may upload on, beside its successor."""
    client = FakeS3()
    slow = store_on(client)
    read = slow.read_manifest
    slow.read_manifest = lambda *given: [read(*given), save_once(client, weights(2))][0]  # type: ignore[assignment]
    with pytest.raises(AlreadyExists):
        save_once(client, weights(1), slow)
    place = S3Uri("bucket", "checkpoints/step-1")
    kept = store_on(client).read_manifest(place)
    assert save_once(client, weights(2)) == kept
    assert store_on(client).is_complete(place)
    with pytest.raises(ArtifactExists):
        save_once(client, weights(1))


def test_cut_off_upload_has_no_manifest(store: Store, place: S3Uri, monkeypatch: pytest.MonkeyPatch) -> None:
    store.upload_artifact({"a": b"1", "b": b"1"}, place, ArtifactKind.policy)
    write = store._s3.put_object

    def cut(**arguments: Any) -> Any:
        if arguments["Key"].endswith("/b"):
            raise EndpointConnectionError(endpoint_url="cut")
        return write(**arguments)

    monkeypatch.setattr(store._s3, "put_object", cut)
    with pytest.raises(Unreachable):
        store.upload_artifact({"a": b"2", "b": b"2"}, place, ArtifactKind.policy)
    assert store.read_manifest(place) is None
    assert not store.is_complete(place)


def test_download_without_manifest_is_not_found(store: Store, place: S3Uri, tmp_path: Path) -> None:
    store.put_bytes(place / "a", b"1")
    with pytest.raises(NotFound, match="incomplete"):
        store.download(place, tmp_path / "dest")
    assert list(tmp_path.iterdir()) == []


def test_changed_file_is_corrupt_and_leaves_nothing(store: Store, place: S3Uri, tmp_path: Path) -> None:
    store.upload_artifact({"a": b"1"}, place, ArtifactKind.adapter)
    store.put_bytes(place / "a", b"2")
    with pytest.raises(Corrupt, match="SHA-256"):
        store.download(place, tmp_path / "dest")
    assert list(tmp_path.iterdir()) == []


def test_missing_file_is_incomplete(store: Store, place: S3Uri, tmp_path: Path) -> None:
    store.upload_artifact({"a": b"1", "b": b"2"}, place, ArtifactKind.adapter)
    store.delete_prefix(place / "b")
    assert store.is_complete(place)
    store._delete(place, [(place / "b").key])
    assert not store.is_complete(place)
    with pytest.raises(NotFound):
        store.download(place, tmp_path / "dest")


def test_manifest_cannot_lead_outside_its_folder(store: Store, place: S3Uri, tmp_path: Path) -> None:
    manifest = store.upload_artifact({"a": b"1"}, place, ArtifactKind.adapter)
    manifest.files[0].name = "../evil"
    store.put_bytes(place / MANIFEST, manifest.model_dump_json(by_alias=True).encode())
    with pytest.raises(Corrupt, match="outside"):
        store.download(place, tmp_path / "dest")


def test_garbage_manifest_is_corrupt_and_can_be_uploaded_over(store: Store, place: S3Uri) -> None:
    store.put_bytes(place / MANIFEST, b"{}")
    with pytest.raises(Corrupt) as caught:
        store.read_manifest(place)
    assert caught.value.problem.reason == "S3ArtifactCorrupt"
    store.upload_artifact({"a": b"1"}, place, ArtifactKind.adapter)
    assert store.is_complete(place)


def test_an_object_is_read_up_to_a_limit(store: Store, place: S3Uri) -> None:
    store.put_bytes(place / "log", b"12345")
    assert store.get_bytes(place / "log", 5) == b"12345"
    with pytest.raises(ObjectTooLarge, match="larger than the limit of 4 bytes"):
        store.get_bytes(place / "log", 4)


def test_a_manifest_of_any_size_is_not_read(store: Store, place: S3Uri) -> None:
    store.put_bytes(place / MANIFEST, b"[" * (MAX_MANIFEST_BYTES + 1))
    with pytest.raises(Corrupt, match="4,194,304"):
        store.read_manifest(place)


def test_a_file_that_is_larger_than_in_its_manifest_is_not_read(store: Store, place: S3Uri, tmp_path: Path) -> None:
    store.upload_artifact({"a": b"1"}, place, ArtifactKind.adapter)
    store.put_bytes(place / "a", b"1" * 1000)
    with pytest.raises(Corrupt, match="larger than the limit of 1 bytes"):
        store.download(place, tmp_path / "dest")


def test_nothing_to_upload_is_an_error(store: Store, place: S3Uri, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no files"):
        store.upload_artifact(tmp_path, place, ArtifactKind.adapter)


def test_listings_and_deletion_stop_at_the_slash(store: Store, place: S3Uri) -> None:
    for step in (1, 10, 2):
        store.upload_artifact({"x/y": b"123"}, place / f"step-{step}", ArtifactKind.checkpoint)
    assert store.list_folders(place) == ["step-1", "step-10", "step-2"]
    assert [name for name, _ in store.list_files(place / "step-1")] == [MANIFEST, "x/y"]
    assert dict(store.list_files(place / "step-1"))["x/y"] == 3
    assert store.delete_prefix(place / "step-1") == 2
    assert store.list_folders(place) == ["step-10", "step-2"]
    assert store.delete_prefix(place / "step-1") == 0
    assert store.list_folders(place / "never") == []


def test_more_objects_than_one_page_and_one_delete_request(store: Store, place: S3Uri) -> None:
    numbers = iter(range(1100))
    lock = threading.Lock()

    def put() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            store.put_bytes(place / f"{number:05d}", b"")

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.list_files(place)) == 1100
    assert store.delete_prefix(place) == 1100
    assert store.list_files(place) == []


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("objects", [6, 7])
def test_a_folder_is_deleted_piece_by_piece(
    store: Store, place: S3Uri, monkeypatch: pytest.MonkeyPatch, objects: int, kept: int
) -> None:
    monkeypatch.setattr("rlrun.storage.store.DELETE_PIECE", 3)
    deletions: list[list[str]] = []
    delete = store._delete

    def recorded(uri: S3Uri, keys: list[str]) -> None:
        deletions.append(keys)
        delete(uri, keys)

    monkeypatch.setattr(store, "_delete", recorded)
    for number in range(objects):
        store.put_bytes(place / f"a/{number // 2}/x{number}", b"")
    if kept:
        store.put_bytes(place / "a/2/kept/x", b"")
    assert store.delete_prefix(place, [place / "a/2/kept"] * kept) == objects
    assert [name for name, _ in store.list_files(place)] == ["a/2/kept/x"] * kept
    assert max(map(len, deletions)) <= 3
    # Folders are deleted once they are empty, also those of a file system.
    order = [key for keys in deletions for key in keys]
    for folder in (key for key in order if key.endswith("/")):
        assert not any(later.startswith(folder) for later in order[order.index(folder) + 1 :])
    assert len(set(order)) == len(order)
    assert store.list_folders(place / "a") == ["2"] * kept
    assert ((place / "a").key + "/" in order) != bool(kept)


def test_uploads_below_kept_folders_are_not_aborted() -> None:
    client, run = FakeS3(), S3Uri("bucket", "run")
    for key in ("run/kept/adapter", "run/kept-not/adapter", "run/checkpoint"):
        client.create_multipart_upload(Bucket="bucket", Key=key)
    store_on(client).delete_prefix(run, [run / "kept"])
    assert [key for key, _ in client.uploads.values()] == ["run/kept/adapter"]


def test_a_whole_bucket_is_never_deleted(store: Store, s3_server: S3Server) -> None:
    with pytest.raises(ValueError, match="refusing"):
        store.delete_prefix(S3Uri(s3_server.bucket, ""))


def test_check_passes_with_a_reachable_bucket(store: Store, s3_server: S3Server) -> None:
    store.check(S3Uri(s3_server.bucket, ""))


def test_missing_bucket(store: Store) -> None:
    with pytest.raises(BucketMissing) as caught:
        store.check(S3Uri("no-such-bucket", ""))
    assert caught.value.problem.reason == "S3BucketMissing"
    assert "'no-such-bucket'" in caught.value.problem.message
    with pytest.raises(BucketMissing):
        store.put_bytes(S3Uri("no-such-bucket", "a"), b"1")
    with pytest.raises(BucketMissing):
        store.list_files(S3Uri("no-such-bucket", "a"))


def test_upload_of_a_file_says_which_error(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    with pytest.raises(BucketMissing):
        store.upload_artifact(tmp_path, S3Uri("no-such-bucket", "a"), ArtifactKind.adapter)


@pytest.mark.parametrize(
    ("key", "secret"), [("nobody", "test-secret"), ("test-key", "wrong")], ids=["unknown key", "wrong secret"]
)
def test_wrong_credentials(s3_server: S3Server, key: str, secret: str) -> None:
    store = Store(S3Connection(endpoint=s3_server.endpoint), access_key_id=key, secret_access_key=secret)
    with pytest.raises(AccessDenied) as caught:
        store.check(S3Uri(s3_server.bucket, ""))
    assert caught.value.problem.reason == "S3AccessDenied"
    assert "AWS_SECRET_ACCESS_KEY" in caught.value.problem.message
    assert secret not in caught.value.problem.message
    with pytest.raises(AccessDenied):
        store.put_bytes(S3Uri(s3_server.bucket, "a"), b"1")


def test_no_credentials_at_all(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(AccessDenied, match="no S3 credentials"):
        Store(S3Connection(endpoint=s3_server.endpoint)).check(S3Uri(s3_server.bucket, ""))


def test_settings_come_from_the_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    Store().check(S3Uri(s3_server.bucket, ""))


def test_a_store_of_variables_has_their_endpoint_and_keys(s3_server: S3Server, place: S3Uri) -> None:
    store = Store.from_variables(s3_server.environment)
    assert store.endpoint == s3_server.environment["AWS_ENDPOINT_URL_S3"]
    store.put_bytes(place / "file", b"data")
    assert store.get_bytes(place / "file") == b"data"
    with pytest.raises(AccessDenied):
        Store.from_variables(s3_server.environment | {"AWS_SECRET_ACCESS_KEY": "wrong"}).check(S3Uri(place.bucket, ""))


def test_connection_without_a_listener_fails() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        store = Store(S3Connection(endpoint=f"http://127.0.0.1:{port}"), access_key_id="a", secret_access_key="b")
        with pytest.raises(Unreachable) as caught:
            store.check(S3Uri("rlrun", ""))
    assert caught.value.problem.reason == "S3Unreachable"
    assert f"127.0.0.1:{port}" in caught.value.problem.message


def test_unknown_host() -> None:
    store = Store(S3Connection(endpoint="http://s3.invalid:8333"), access_key_id="a", secret_access_key="b")
    with pytest.raises(Unreachable, match=r"s3\.invalid"):
        store.get_bytes(S3Uri("rlrun", "a"))


def test_many_threads_share_one_store(store: Store, place: S3Uri) -> None:
    failures: list[StoreError] = []

    def work(number: int) -> None:
        try:
            store.upload_artifact({"a": str(number).encode()}, place / str(number), ArtifactKind.policy)
            assert store.get_bytes(place / f"{number}/a") == str(number).encode()
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(store.list_folders(place)) == 16


@pytest.mark.slow
async def test_a_silent_server_is_tried_as_often_as_the_limits_say() -> None:
    async with stub_s3() as s3:
        s3.silence()
        store = Store.from_variables(s3.environment, RequestLimits(connect_seconds=2, read_seconds=0.2, tries=2))
        with pytest.raises(Unreachable):
            await asyncio.to_thread(store.check, S3Uri(BUCKET, ""))
        assert s3.requests == ["list", "list"]


@pytest.mark.slow
async def test_every_request_is_watched_also_a_repeated_one() -> None:
    async with stub_s3() as s3:
        s3.dropped = {"list"}
        store, seen = Store.from_variables(s3.environment), list[str]()
        store.watch_requests(seen.append, lambda: seen.append("response"))
        await asyncio.to_thread(store.check, S3Uri(BUCKET, ""))
        await asyncio.to_thread(store.put_bytes, S3Uri(BUCKET, "a"), b"data")
        assert seen == ["GET", "GET", "response", "PUT", "response"]


@pytest.mark.slow
async def test_a_request_that_its_watcher_refuses_is_not_sent() -> None:
    def refuse(method: str) -> None:
        raise PermissionError(method)

    async with stub_s3() as s3:
        store = Store.from_variables(s3.environment)
        store.watch_requests(refuse, lambda: None)
        with pytest.raises(PermissionError, match="GET"):
            await asyncio.to_thread(store.check, S3Uri(BUCKET, ""))
        assert s3.requests == []
