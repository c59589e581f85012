"""S3 in memory below the product's own `Store`: only the boto3 client is replaced. Strongly consistent, as S3 is.

tests/support/contracts/s3_contract.py says what it has in common with a real one, and holds it to it.
"""

import copy
import hashlib
import io
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError
from rlrun.api.base.s3_connection import S3Connection
from rlrun.storage.layout import S3Uri
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun.storage.store import Store, StoreError
from rlrun.storage.transfer import Transfer
from typing_extensions import override

PAGE = 1000
MIN_PART = 5 * 1024**2
"""Smallest part of an upload in bytes, except for the last one."""
MODIFIED = datetime(2026, 1, 1, tzinfo=UTC)
"""Time of every write."""


class NoSuchUpload(ClientError):  # type: ignore[misc]  # botocore has no types
    """As boto3 makes it."""

    def __init__(self, operation: str) -> None:
        answer = {"Error": {"Code": "NoSuchUpload"}, "ResponseMetadata": {"HTTPStatusCode": 404}}
        super().__init__(answer, operation)


class FakeS3:
    """Client of one bucket, in memory. Parts of an upload are kept apart until the upload is completed.

    An operation or an argument that `Store` does not use is a Python error, and is never ignored.
    """

    exceptions = SimpleNamespace(NoSuchUpload=NoSuchUpload)

    def __init__(self, bucket: str = "bucket") -> None:
        self.bucket = bucket
        self.data: dict[str, bytes] = {}
        self.uploads: dict[str, tuple[str, dict[int, bytes]]] = {}
        """Key and parts of multipart uploads that are not completed."""
        self.on_delete: Callable[[str], None] = lambda _: None
        """Called with every key before it is deleted."""
        self._ids = itertools.count()

    def put_object(self, *, Bucket: str, Key: str, Body: Any, IfNoneMatch: str = "") -> dict[str, Any]:
        """A whole object."""
        self._check(Bucket, "PutObject")
        self._store(Key, _bytes(Body), IfNoneMatch, "PutObject")
        return {"ETag": _etag(self.data[Key])}

    def get_object(self, *, Bucket: str, Key: str, Range: str = "") -> dict[str, Any]:
        """A whole object, or `bytes=a-b`, `bytes=a-` or `bytes=-b` of it."""
        self._check(Bucket, "GetObject")
        if Key not in self.data:
            raise _client_error("NoSuchKey", 404, "GetObject")
        whole = data = self.data[Key]
        answer: dict[str, Any] = {"ETag": _etag(whole)}
        if Range:
            begin, end = Range.removeprefix("bytes=").split("-")
            first = int(begin) if begin else max(0, len(whole) - int(end))
            data = whole[first : int(end) + 1] if begin and end else whole[first:]
            if not data:
                raise _client_error("InvalidRange", 416, "GetObject")
            answer["ContentRange"] = f"bytes {first}-{first + len(data) - 1}/{len(whole)}"
        return {**answer, "Body": io.BytesIO(data), "ContentLength": len(data)}

    def delete_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        """One object; one that is not there is no error."""
        self._check(Bucket, "DeleteObject")
        if Key in self.data:
            self.on_delete(Key)
            del self.data[Key]
        return {}

    def delete_objects(self, *, Bucket: str, Delete: Mapping[str, Any]) -> dict[str, Any]:
        """Up to PAGE objects, without a list of them: `Quiet` is needed."""
        assert Delete["Quiet"]
        self._check(Bucket, "DeleteObjects")
        if len(Delete["Objects"]) > PAGE:
            raise _client_error("MalformedXML", 400, "DeleteObjects")
        for entry in Delete["Objects"]:
            self.delete_object(Bucket=Bucket, Key=entry["Key"])
        return {}

    def list_objects_v2(
        self, *, Bucket: str, Prefix: str = "", Delimiter: str = "", MaxKeys: int = PAGE, ContinuationToken: str = ""
    ) -> dict[str, Any]:
        """One page of keys, and of folders if there is a delimiter."""
        self._check(Bucket, "ListObjectsV2")
        found: dict[str, bool] = {}
        for key in sorted(key for key in self.data if key.startswith(Prefix)):
            head, is_folder, _ = key.removeprefix(Prefix).partition(Delimiter) if Delimiter else ("", "", "")
            found[f"{Prefix}{head}{is_folder}" if is_folder else key] = bool(is_folder)
        left = {name: is_folder for name, is_folder in found.items() if name > ContinuationToken}
        page = list(left.items())[:MaxKeys]
        answer = {
            "Contents": [self._entry(name) for name, is_folder in page if not is_folder],
            "CommonPrefixes": [{"Prefix": name} for name, is_folder in page if is_folder],
            "NextContinuationToken": page[-1][0] if len(left) > len(page) else "",
        }
        # As boto3, which has no entry for what the answer lacks.
        shown = {name: value for name, value in answer.items() if value}
        return {**shown, "KeyCount": len(page), "IsTruncated": len(left) > len(page)}

    def create_multipart_upload(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        """Begins an upload in parts."""
        self._check(Bucket, "CreateMultipartUpload")
        name = f"upload-{next(self._ids):06}"
        self.uploads[name] = (Key, {})
        return {"UploadId": name, "Key": Key}

    def upload_part(self, *, Bucket: str, Key: str, UploadId: str, PartNumber: int, Body: Any) -> dict[str, Any]:
        """One part."""
        parts = self._parts(Bucket, Key, UploadId, "UploadPart")
        parts[PartNumber] = _bytes(Body)
        return {"ETag": _etag(parts[PartNumber])}

    def complete_multipart_upload(
        self, *, Bucket: str, Key: str, UploadId: str, MultipartUpload: Mapping[str, Any], IfNoneMatch: str = ""
    ) -> dict[str, Any]:
        """The object appears, whole."""
        operation = "CompleteMultipartUpload"
        stored = self._parts(Bucket, Key, UploadId, operation)
        numbers = [part["PartNumber"] for part in MultipartUpload["Parts"]]
        if numbers != sorted(set(numbers)):
            raise _client_error("InvalidPartOrder", 400, operation)
        if any(_etag(stored.get(part["PartNumber"], b"")) != part["ETag"] for part in MultipartUpload["Parts"]):
            raise _client_error("InvalidPart", 400, operation)
        if any(len(stored[number]) < MIN_PART for number in numbers[:-1]):
            raise _client_error("EntityTooSmall", 400, operation)
        self._store(Key, b"".join(stored[number] for number in numbers), IfNoneMatch, operation)
        del self.uploads[UploadId]
        return {}

    def abort_multipart_upload(self, *, Bucket: str, Key: str, UploadId: str) -> dict[str, Any]:
        """The parts go."""
        self._parts(Bucket, Key, UploadId, "AbortMultipartUpload")
        del self.uploads[UploadId]
        return {}

    def list_multipart_uploads(self, *, Bucket: str, Prefix: str = "") -> dict[str, Any]:
        """Uploads that were never completed, on one page."""
        self._check(Bucket, "ListMultipartUploads")
        found = sorted((key, name) for name, (key, _) in self.uploads.items() if key.startswith(Prefix))
        uploads = [{"Key": key, "UploadId": name, "Initiated": MODIFIED} for key, name in found]
        return {**({"Uploads": uploads} if uploads else {}), "IsTruncated": False}

    def close(self) -> None:
        """Nothing to give back."""

    def _check(self, bucket: str, operation: str) -> None:
        if bucket != self.bucket:
            raise _client_error("NoSuchBucket", 404, operation)

    def _parts(self, bucket: str, key: str, upload: str, operation: str) -> dict[int, bytes]:
        self._check(bucket, operation)
        if upload not in self.uploads or self.uploads[upload][0] != key:
            raise NoSuchUpload(operation)
        return self.uploads[upload][1]

    def _store(self, key: str, data: bytes, condition: str, operation: str) -> None:
        if condition == "*" and key in self.data:
            raise _client_error("PreconditionFailed", 412, operation)
        self.data[key] = data

    def _entry(self, key: str) -> dict[str, Any]:
        return {"Key": key, "Size": len(self.data[key]), "LastModified": MODIFIED}

    def get_paginator(self, operation: str) -> "Pages":
        """Pages of a listing."""
        return Pages(getattr(self, operation))


class Pages:
    """A paginator of boto3 for listings of objects and of uploads."""

    def __init__(self, list_page: Callable[..., dict[str, Any]]) -> None:
        self._list_page = list_page

    def paginate(self, **arguments: Any) -> Iterator[dict[str, Any]]:
        """Yield each page."""
        page = self._list_page(**arguments)
        yield page
        while page["IsTruncated"]:
            page = self._list_page(**arguments, ContinuationToken=page["NextContinuationToken"])
            yield page


class ObjectsByUri(MutableMapping[str, bytes]):
    """The objects of a bucket by their `s3://` URI."""

    def __init__(self, s3: FakeS3, bucket: str) -> None:
        self._data = s3.data
        self._head = f"s3://{bucket}/"

    @override
    def __getitem__(self, uri: str) -> bytes:
        return self._data[uri.removeprefix(self._head)]

    @override
    def __setitem__(self, uri: str, data: bytes) -> None:
        self._data[uri.removeprefix(self._head)] = data

    @override
    def __delitem__(self, uri: str) -> None:
        del self._data[uri.removeprefix(self._head)]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter([f"{self._head}{key}" for key in list(self._data)])

    @override
    def __len__(self) -> int:
        return len(self._data)


class InMemoryStore(Store):
    """The product's store on `FakeS3`. Counts what is read; `fail` is raised by every read of an artifact."""

    def __init__(self, bucket: str = "bucket") -> None:
        self.s3 = FakeS3(bucket)
        self.objects: MutableMapping[str, bytes] = ObjectsByUri(self.s3, bucket)
        place_on(self, self.s3)
        self.endpoint = "http://s3.test"
        self.reads = self.downloads = 0
        self.fail: StoreError | None = None
        self.silent: threading.Event | None = None
        """Manifests are read only after this is set."""

    def publish(self, uri: str, files: Mapping[str, bytes], kind: ArtifactKind, **details: Any) -> Manifest:
        """Upload an artifact, as another process would, so that `fail` does not matter."""
        facts = Manifest(kind=kind, files=[], created_at=MODIFIED, details=details)
        return store_on(self.s3).upload(files, S3Uri.parse(uri), facts)

    @override
    def read_manifest(self, uri: S3Uri, digest: str = "") -> Manifest | None:
        self.reads += 1
        if self.silent is not None:
            assert self.silent.wait(30)
        if self.fail is not None:
            raise self.fail
        return super().read_manifest(uri, digest)

    @override
    def download(self, uri: S3Uri, dest: Path, manifest: Manifest | None = None, *, digest: str = "") -> Manifest:
        self.downloads += 1
        if self.fail is not None:
            raise self.fail
        return super().download(uri, dest, manifest, digest=digest)


def store_on(client: Any) -> Store:
    """A store of the product whose client is this one."""
    store = copy.copy(_template())
    place_on(store, client)
    return store


def place_on(store: Store, client: Any) -> None:
    """Give a store this client, with one request after the other."""
    store._s3 = client
    store._transfer = Transfer(client, getattr(store, "endpoint", "http://s3.test"))
    store._signer = store._direct = None
    store._transfer._threads = InTurn()  # type: ignore[assignment]


class InTurn:
    """An executor that does each piece of work at once, where it was handed in."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Done when this returns."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)
        return future

    def shutdown(self, **_: Any) -> None:
        """Nothing runs."""


@cache
def _template() -> Store:
    # Making a boto3 client takes longer than most tests.
    return Store(S3Connection(endpoint="http://s3.test:8333"), access_key_id="key", secret_access_key="secret")


def _bytes(body: Any) -> bytes:
    return bytes(body) if isinstance(body, bytes | bytearray | memoryview) else bytes(body.read())


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _client_error(code: str, status: int, operation: str) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, operation
    )
