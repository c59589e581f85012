"""Transfers files to and from S3 in parts, with bounded memory and one pass over the bytes.

The caller's thread reads and hashes while a few other threads send requests, so that files and parts are transferred
concurrently. In addition to files given as bytes, all callers together hold at most CONCURRENCY parts in memory, and
each caller holds one more part that it reads ahead. An object appears complete or not at all: a failed multipart upload
is aborted.
"""

import contextlib
import hashlib
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from rlrun.protocol.storage_access import MAX_BATCH
from rlrun.storage.direct_requests import DirectRequests, read_body
from rlrun.storage.errors import NO_RESPONSE_ERRORS, StoreError, translate_s3_errors
from rlrun.storage.layout import S3Uri
from rlrun.storage.manifest import FileEntry

PART_BYTES = 16 * 1024**2
CONCURRENCY = 8
"""Maximum number of concurrent transfers in threads, and of the parts that these hold in memory."""
MAX_PARTS = 10_000
"""Maximum number of parts of one object in S3."""
BODY_TRIES = 4
"""Number of attempts for a part whose body is interrupted. botocore retries only requests without a response."""


def part_bytes(size: int) -> int:
    """Return the part size for an object of `size` bytes: PART_BYTES, or more to stay within MAX_PARTS."""
    return max(PART_BYTES, math.ceil(size / MAX_PARTS))


@dataclass(frozen=True)
class Outgoing:
    """File to upload: its name in the artifact and its content."""

    name: str
    content: Path | bytes
    entry: FileEntry | None = None
    """Manifest entry of the file if its content is already hashed, otherwise None."""
    is_stored: bool = False
    """True if S3 has the content under the name in `entry`."""


def size_of(file: Outgoing) -> int:
    """Return the current size of the file in bytes."""
    return len(file.content) if isinstance(file.content, bytes) else file.content.stat().st_size


@dataclass(frozen=True)
class Incoming:
    """File to download, with its path on disk."""

    entry: FileEntry
    path: Path


@dataclass
class _Batch:
    """Requests of one upload."""

    tasks: list[Future[None]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def on_done(self, task: Future[None]) -> None:
        """Record the failure of a finished request, if it failed."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)

    def check(self) -> None:
        """Raise the first failure, if any."""
        if self.failures:
            raise self.failures[0]


@dataclass
class _Multipart:
    """Multipart upload in progress."""

    place: S3Uri
    id: str
    etags: dict[int, str] = field(default_factory=dict)
    complete: bool = False


class _Download:
    """Download of a file in progress. Parts are written in any order and hashed in order."""

    def __init__(self, incoming: Incoming) -> None:
        self.entry = incoming.entry
        self.size = 0
        self._hash = hashlib.sha256()
        self._file = os.open(incoming.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def write(self, data: bytes, offset: int) -> None:
        """Write one part, in any order and from any thread."""
        done = 0
        while done < len(data):
            done += os.pwrite(self._file, memoryview(data)[done:], offset + done)

    def hash_part(self, data: bytes) -> None:
        """Hash the next part in the order of the file."""
        self._hash.update(data)
        self.size += len(data)

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def result(self) -> FileEntry:
        """Manifest entry of the file as downloaded so far."""
        return self.entry.model_copy(update={"size": self.size, "sha256": self._hash.hexdigest()})


class Transfer:
    """Transfers artifact files for all threads of a process. Methods that send requests raise StoreError."""

    def __init__(
        self, s3: Any, endpoint: str, direct: DirectRequests | None = None, concurrency: int = CONCURRENCY
    ) -> None:
        """`direct` is set if rlrun-server signs the requests, and then transfers objects and parts."""
        self._s3 = s3
        self._endpoint = endpoint
        self._direct = direct
        self._concurrency = concurrency
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="s3")
        self._slots = threading.BoundedSemaphore(concurrency)

    def close(self) -> None:
        """Reject further transfers, without waiting for transfers in progress."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- upload -------------------------------------------------------------------------------------------------------

    def upload(self, files: Sequence[Outgoing], to: S3Uri, *, once: bool = False) -> list[FileEntry]:
        """Upload the files below `to` and return their entries in the same order.

        After a failure, each object is either complete or as it was before. If `once` is true, raises AlreadyExists
        instead of replacing an object.
        """
        batch = _Batch()
        multiparts: list[_Multipart] = []
        try:
            entries = [self._send(file, to, batch, multiparts, once) for file in files]
            wait(batch.tasks)
            batch.check()
            for multipart in multiparts:
                self._complete(multipart, once)
        except BaseException:
            for task in batch.tasks:
                task.cancel()
            wait(batch.tasks)
            for multipart in multiparts:
                self._abort(multipart)
            raise
        return entries

    def _send(self, file: Outgoing, to: S3Uri, batch: _Batch, multiparts: list[_Multipart], once: bool) -> FileEntry:
        if file.entry is not None and file.is_stored:
            return file.entry
        place = to / (file.entry.stored_as if file.entry else file.name)
        size = size_of(file)
        multipart = self._begin(place) if size > PART_BYTES else None
        if multipart is not None:
            multiparts.append(multipart)
        digest, sent = hashlib.sha256(), 0
        for number, data in enumerate(_parts(file.content, size), 1):
            # After a failure the remaining files need not be read.
            batch.check()
            if multipart is not None:
                if number % MAX_BATCH == 1:
                    self._sign_ahead(multipart, number, math.ceil(size / part_bytes(size)))
                self._start(batch, self._put_part, multipart, number, data)
            elif number == 1:
                self._start(batch, self._put, place, data, file.entry.sha256 if file.entry else None, once)
            else:
                raise StoreError(
                    f"{file.name} grew while it was uploaded to {place}: upload it again once no process writes to it"
                )
            if file.entry is None:
                digest.update(data)
            sent += len(data)
        return file.entry or FileEntry(name=file.name, size=sent, sha256=digest.hexdigest())

    def _start(self, batch: _Batch, function: Callable[..., None], *arguments: Any) -> None:
        self._slots.acquire()
        try:
            task = self._threads.submit(function, *arguments)
        except BaseException:
            self._slots.release()
            raise
        batch.tasks.append(task)
        # Keep this order, so that a thread that acquires the slot sees the failure.
        task.add_done_callback(batch.on_done)
        task.add_done_callback(lambda _: self._slots.release())

    def _put(self, place: S3Uri, data: bytes, digest: str | None, once: bool) -> None:
        with translate_s3_errors(place, self._endpoint):
            if self._direct is not None and self._direct.put(place, data, digest, once=once):
                return
            self._s3.put_object(Bucket=place.bucket, Key=place.key, Body=data, **condition(once))

    def _begin(self, place: S3Uri) -> _Multipart:
        with translate_s3_errors(place, self._endpoint):
            response = self._s3.create_multipart_upload(Bucket=place.bucket, Key=place.key)
            return _Multipart(place, str(response["UploadId"]))

    def _sign_ahead(self, multipart: _Multipart, number: int, last: int) -> None:
        """Request the signatures of up to MAX_BATCH parts, from `number` on, in one request."""
        if self._direct is None:
            return
        place, numbers = multipart.place, range(number, min(number + MAX_BATCH, last + 1))
        with translate_s3_errors(place, self._endpoint):
            self._direct.sign_ahead(self._direct.describe_part(place, multipart.id, n) for n in numbers)

    def _put_part(self, multipart: _Multipart, number: int, data: bytes) -> None:
        place = multipart.place
        with translate_s3_errors(place, self._endpoint):
            etag = self._direct.put_part(place, multipart.id, number, data) if self._direct is not None else None
            if etag is None:
                response = self._s3.upload_part(
                    Bucket=place.bucket, Key=place.key, UploadId=multipart.id, PartNumber=number, Body=data
                )
                etag = str(response["ETag"])
        multipart.etags[number] = etag

    def _complete(self, multipart: _Multipart, once: bool) -> None:
        place = multipart.place
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in sorted(multipart.etags.items())]
        with translate_s3_errors(place, self._endpoint):
            self._s3.complete_multipart_upload(
                Bucket=place.bucket,
                Key=place.key,
                UploadId=multipart.id,
                MultipartUpload={"Parts": parts},
                **condition(once),
            )
        multipart.complete = True

    def _abort(self, multipart: _Multipart) -> None:
        if multipart.complete:
            return
        # Report the original failure. Remaining parts are removed by the next upload or with the folder.
        with contextlib.suppress(StoreError), translate_s3_errors(multipart.place, self._endpoint):
            self._s3.abort_multipart_upload(
                Bucket=multipart.place.bucket, Key=multipart.place.key, UploadId=multipart.id
            )

    # --- download -----------------------------------------------------------------------------------------------------

    def download(self, files: Sequence[Incoming], below: S3Uri) -> Iterator[FileEntry]:
        """Download the files from the folder `below`, and yield the manifest entry of each as downloaded.

        The folders of the paths must exist. A caller that stops early may leave incomplete files.
        """
        window: deque[tuple[_Download, bool, Future[bytes]]] = deque()
        downloads: list[_Download] = []
        try:
            for incoming in files:
                file = _Download(incoming)
                downloads.append(file)
                place, size = below / incoming.entry.stored_as, incoming.entry.size
                step = part_bytes(size)
                for offset in range(0, max(size, 1), step):
                    # To avoid a deadlock, a caller that holds parts must not wait for parts of other callers.
                    while not self._slots.acquire(blocking=not window):
                        yield from self._next_file(window)
                    whole, last = size <= step, offset + step >= size
                    count = None if whole else min(step, size - offset)
                    task = self._threads.submit(self._get, file, place, offset, count)
                    window.append((file, last, task))
                    if len(window) >= self._concurrency:
                        yield from self._next_file(window)
            while window:
                yield from self._next_file(window)
        finally:
            for _, _, task in window:
                task.cancel()
            wait([task for _, _, task in window])
            for _ in window:
                self._slots.release()
            for file in downloads:
                file.close()

    def digest(self, place: S3Uri, size: int) -> str:
        """Return the SHA-256 of the first `size` bytes of an object."""
        digest, step = hashlib.sha256(), part_bytes(size)
        for offset in range(0, size, step):
            with translate_s3_errors(place, self._endpoint):
                count = min(step, size - offset)
                digest.update(self._read_range(place, offset, count, count))
        return digest.hexdigest()

    def _next_file(self, window: deque[tuple[_Download, bool, Future[bytes]]]) -> Iterator[FileEntry]:
        file, last, task = window[0]
        data = task.result()
        window.popleft()
        self._slots.release()
        file.hash_part(data)
        if last:
            file.close()
            yield file.result

    def _get(self, file: _Download, place: S3Uri, offset: int, count: int | None) -> bytes:
        with translate_s3_errors(place, self._endpoint):
            # Enforce the size, because callers rely on the sizes in the manifest for memory and disk.
            limit = file.entry.size if count is None else count
            data = self._direct.get(place, limit) if self._direct is not None and count is None else None
            if data is None:
                data = self._read_range(place, offset, count, limit)
        file.write(data, offset)
        return data

    def _read_range(self, place: S3Uri, offset: int, count: int | None, limit: int) -> bytes:
        byte_range = {} if count is None else {"Range": f"bytes={offset}-{offset + count - 1}"}
        for tries in range(1, BODY_TRIES + 1):
            try:
                body = self._s3.get_object(Bucket=place.bucket, Key=place.key, **byte_range)["Body"]
                return read_body(body, limit, place)
            except NO_RESPONSE_ERRORS:
                if tries == BODY_TRIES:
                    raise
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") != "InvalidRange":
                    raise
                # The object is too short; the digest will not match.
                return b""
        raise AssertionError("unreachable: the last attempt neither returned nor raised")


def condition(once: bool) -> dict[str, str]:
    """Return the boto3 parameter that makes S3 store an object only if it does not exist, or no parameter if `once` is
    False.
    """
    return {"IfNoneMatch": "*"} if once else {}


def _parts(content: Path | bytes, size: int) -> Iterator[bytes]:
    step = part_bytes(size)
    if isinstance(content, bytes):
        yield from (content[start : start + step] for start in range(0, max(len(content), 1), step))
        return
    with content.open("rb", buffering=0) as file:
        first = True
        while (data := _read(file, step)) or first:
            yield data
            first = False


def _read(file: Any, count: int) -> bytes:
    # A raw read may return fewer bytes, and all parts but the last must have the same size.
    pieces = []
    while count > 0 and (piece := file.read(count)):
        pieces.append(piece)
        count -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
