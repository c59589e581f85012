"""S3 in memory, behind the requests that the store makes with its client; strongly consistent, as S3 is.

The store itself is the real one: only its client is replaced. Multipart uploads are kept apart until they are
completed, and what was never completed can be counted.
"""

import copy
import hashlib
import io
import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError
from pydantic import ValidationError
from rlrun.storage.layout import MANIFEST
from rlrun.storage.manifest import Manifest
from rlrun.storage.store import Store
from rlrun.storage.transfer import Transfer
from rlrun_operator.controller.artifact_store import StoreArtifacts

from tests.chaos.invariants import Stored
from tests.chaos.unit.faults import FaultyBucket, Gate
from tests.support.operator_world import START

BUCKET = "rlrun"
PAGE = 1000


class NoSuchUpload(ClientError):  # type: ignore[misc]  # botocore has no types
    """As boto3 makes it."""

    def __init__(self, operation: str) -> None:
        answer = {"Error": {"Code": "NoSuchUpload"}, "ResponseMetadata": {"HTTPStatusCode": 404}}
        super().__init__(answer, operation)


class MemoryBucket:
    """One bucket. `on_delete` is called with every key that is about to go."""

    exceptions = SimpleNamespace(NoSuchUpload=NoSuchUpload)

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.uploads: dict[str, tuple[str, dict[int, bytes]]] = {}
        """Key and parts of multipart uploads that are not completed."""
        self.on_delete: Callable[[str], None] = lambda _: None
        self._ids = itertools.count()
        self._hashes: dict[str, tuple[bytes, Stored]] = {}
        self._manifests: dict[str, tuple[bytes, Manifest | None]] = {}

    # --- what the invariants look at --------------------------------------------------------------------------------

    def files(self) -> dict[str, Stored]:
        """Size and hash by key."""
        found = {}
        for key, data in self.data.items():
            known = self._hashes.get(key)
            if known is None or known[0] is not data:
                known = self._hashes[key] = (data, Stored(len(data), hashlib.sha256(data).hexdigest()))
            found[key] = known[1]
        return found

    def manifests(self) -> dict[str, Manifest]:
        """By key of the folder; only those that can be read."""
        found = {}
        for key, data in self.data.items():
            folder, _, name = key.rpartition("/")
            if name != MANIFEST:
                continue
            known = self._manifests.get(key)
            if known is None or known[0] is not data:
                known = self._manifests[key] = (data, _parse(data))
            if known[1] is not None:
                found[folder] = known[1]
        return found

    # --- requests ---------------------------------------------------------------------------------------------------

    def put_object(self, *, Bucket: str, Key: str, Body: Any, **_: Any) -> dict[str, Any]:
        """A whole object."""
        self.data[Key] = _bytes(Body)
        return {"ETag": _etag(self.data[Key])}

    def get_object(self, *, Bucket: str, Key: str, Range: str | None = None, **_: Any) -> dict[str, Any]:
        """A whole object, or `bytes=a-b` of it."""
        data = self._find(Key, "GetObject")
        if Range:
            first, last = Range.removeprefix("bytes=").split("-")
            data = data[int(first) : int(last) + 1 if last else None]
        return {"Body": io.BytesIO(data), "ContentLength": len(data), "ETag": _etag(data)}

    def head_object(self, *, Bucket: str, Key: str, **_: Any) -> dict[str, Any]:
        """Size of an object."""
        data = self._find(Key, "HeadObject")
        return {"ContentLength": len(data), "ETag": _etag(data)}

    def delete_object(self, *, Bucket: str, Key: str, **_: Any) -> dict[str, Any]:
        """One object; one that is not there is no error."""
        if Key in self.data:
            self.on_delete(Key)
            del self.data[Key]
        return {}

    def delete_objects(self, *, Bucket: str, Delete: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """Many objects."""
        for entry in Delete["Objects"]:
            self.delete_object(Bucket=Bucket, Key=entry["Key"])
        return {}

    def list_objects_v2(
        self,
        *,
        Bucket: str,
        Prefix: str = "",
        Delimiter: str | None = None,
        MaxKeys: int = PAGE,
        ContinuationToken: str = "",
        **_: Any,
    ) -> dict[str, Any]:
        """One page."""
        keys = sorted(k for k in self.data if k.startswith(Prefix) and k > ContinuationToken)
        if Delimiter:
            inner = {k.removeprefix(Prefix) for k in keys}
            folders = sorted({k.partition(Delimiter)[0] + Delimiter for k in inner if Delimiter in k})
            contents = sorted(k for k in inner if Delimiter not in k)
            return {
                "CommonPrefixes": [{"Prefix": Prefix + folder} for folder in folders],
                "Contents": [self._entry(Prefix + k) for k in contents],
                "IsTruncated": False,
            }
        page = keys[:MaxKeys]
        answer: dict[str, Any] = {"Contents": [self._entry(k) for k in page]}
        answer["IsTruncated"] = len(keys) > len(page)
        if answer["IsTruncated"]:
            answer["NextContinuationToken"] = page[-1]
        return answer

    def upload_file(self, Filename: str, Bucket: str, Key: str, **_: Any) -> None:
        """What boto3 makes of several requests."""
        self.data[Key] = Path(Filename).read_bytes()

    def download_file(self, Bucket: str, Key: str, Filename: str, **_: Any) -> None:
        """The other way."""
        Path(Filename).write_bytes(self._find(Key, "GetObject"))

    def create_multipart_upload(self, *, Bucket: str, Key: str, **_: Any) -> dict[str, Any]:
        """Begins an upload in parts."""
        name = f"upload-{next(self._ids)}"
        self.uploads[name] = (Key, {})
        return {"UploadId": name, "Key": Key}

    def upload_part(
        self, *, Bucket: str, Key: str, UploadId: str, PartNumber: int, Body: Any, **_: Any
    ) -> dict[str, Any]:
        """One part."""
        if UploadId not in self.uploads:
            raise NoSuchUpload("UploadPart")
        data = self.uploads[UploadId][1][PartNumber] = _bytes(Body)
        return {"ETag": _etag(data)}

    def complete_multipart_upload(
        self, *, Bucket: str, Key: str, UploadId: str, MultipartUpload: Mapping[str, Any], **_: Any
    ) -> dict[str, Any]:
        """The object appears, whole."""
        upload = self.uploads.pop(UploadId, None)
        if upload is None:
            raise NoSuchUpload("CompleteMultipartUpload")
        parts = upload[1]
        self.data[Key] = b"".join(parts[part["PartNumber"]] for part in MultipartUpload["Parts"])
        return {}

    def abort_multipart_upload(self, *, Bucket: str, Key: str, UploadId: str, **_: Any) -> dict[str, Any]:
        """The parts go."""
        self.uploads.pop(UploadId, None)
        return {}

    def list_multipart_uploads(self, *, Bucket: str, Prefix: str = "", **_: Any) -> dict[str, Any]:
        """Uploads that were never completed."""
        found = [(name, key) for name, (key, _) in self.uploads.items() if key.startswith(Prefix)]
        uploads = [{"Key": key, "UploadId": name, "Initiated": START} for name, key in found]
        return {"Uploads": uploads, "IsTruncated": False}

    def close(self) -> None:
        """Nothing to give back."""

    def _entry(self, key: str) -> dict[str, Any]:
        return {"Key": key, "Size": len(self.data[key]), "LastModified": START}

    def _find(self, key: str, operation: str) -> bytes:
        if key not in self.data:
            raise _client_error("NoSuchKey", 404, operation)
        return self.data[key]


class BucketArtifacts(StoreArtifacts):
    """The operator's own S3 code over a bucket in memory: every call in the loop's thread, no verdict remembered."""

    def __init__(self, store: Store) -> None:
        super().__init__(threads=1)
        self._memory = store

    def _store(self, variables: Mapping[str, str]) -> Store:
        return self._memory

    async def _call(self, work: Callable[[], Any]) -> Any:
        # The clock of the story is not the clock on the wall by which verdicts grow old.
        self._checks.clear()
        return work()

    async def check(self, variables: Mapping[str, str], bucket: str) -> Any:
        self._checks.clear()
        return await super().check(variables, bucket)


def store_of(bucket: MemoryBucket, gate: Gate | None = None) -> Store:
    """A real store whose client is the bucket, through a gate if there is one."""
    store = copy.copy(_template())
    store._s3 = FaultyBucket(bucket, gate or Gate())
    store._transfer = Transfer(store._s3, store.endpoint)
    # Requests side by side would come in another order each time, and a story could not be told again.
    store._transfer._threads = InTurn()  # type: ignore[assignment]
    return store


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
    # Making a boto3 client takes longer than a whole story.
    return Store(endpoint_url="http://s3.test:8333", access_key_id="key", secret_access_key="secret")


def _parse(data: bytes) -> Manifest | None:
    try:
        return Manifest.model_validate_json(data)
    except ValidationError:
        return None


def _bytes(body: Any) -> bytes:
    return bytes(body) if isinstance(body, bytes | bytearray | memoryview) else bytes(body.read())


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _client_error(code: str, status: int, operation: str) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, operation
    )
