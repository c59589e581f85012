"""Files to and from S3 in parts: bounded memory, one pass over the bytes, and no half an upload left behind.

The caller's thread reads and hashes while a few other threads talk to S3, so that files and parts of files travel side
by side and small files wait for their answers together. However many callers there are, at most PARALLEL parts are in
memory. An object appears whole or not at all: a failed multipart upload is aborted.
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

from rlrun.artifacts.layout import S3Uri
from rlrun.artifacts.manifest import FileEntry
from rlrun.artifacts.s3errors import SILENCE, StoreError, translated

PART_BYTES = 16 * 1024**2
PARALLEL = 8
"""Requests at the same time; at most PART_BYTES * PARALLEL are in memory at once."""
MOST_PARTS = 10_000
"""S3's own limit of parts in one object."""
BODY_TRIES = 4
"""For one part whose body breaks off; botocore repeats only requests that got no answer."""


def part_bytes(size: int) -> int:
    """Bytes of one part of an object of `size` bytes: PART_BYTES, unless that makes too many parts."""
    return max(PART_BYTES, math.ceil(size / MOST_PARTS))


@dataclass(frozen=True)
class Outgoing:
    """A file to be uploaded: its name in the artifact, and where its bytes are."""

    name: str
    content: Path | bytes


def size_of(file: Outgoing) -> int:
    """Its bytes, as of now."""
    return len(file.content) if isinstance(file.content, bytes) else file.content.stat().st_size


@dataclass(frozen=True)
class Incoming:
    """A file to be downloaded, and where it shall lie."""

    entry: FileEntry
    path: Path


@dataclass
class _Batch:
    """The requests of one upload."""

    tasks: list[Future[None]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def done(self, task: Future[None]) -> None:
        """Called by whoever ended the request."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)

    def check(self) -> None:
        """Raises the first failure."""
        if self.failures:
            raise self.failures[0]


@dataclass
class _Multipart:
    """An object that is being uploaded in parts."""

    place: S3Uri
    id: str
    etags: dict[int, str] = field(default_factory=dict)
    complete: bool = False


class _Arriving:
    """A file whose parts arrive in any order and are hashed in theirs."""

    def __init__(self, incoming: Incoming) -> None:
        self.entry = incoming.entry
        self.size = 0
        self._hash = hashlib.sha256()
        self._file = os.open(incoming.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def write(self, data: bytes, offset: int) -> None:
        """Any part, from any thread."""
        done = 0
        while done < len(data):
            done += os.pwrite(self._file, memoryview(data)[done:], offset + done)

    def next(self, data: bytes) -> None:
        """The next part in order."""
        self._hash.update(data)
        self.size += len(data)

    def close(self) -> None:
        """No more parts; again does no harm."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def found(self) -> FileEntry:
        """What has arrived."""
        return FileEntry(name=self.entry.name, size=self.size, sha256=self._hash.hexdigest())


class Transfer:
    """Moves the files of artifacts for all threads of a process. All methods raise `StoreError`s."""

    def __init__(self, s3: Any, endpoint: str, parallel: int = PARALLEL) -> None:
        self._s3 = s3
        self._endpoint = endpoint
        self._parallel = parallel
        self._threads = ThreadPoolExecutor(parallel, thread_name_prefix="s3")
        self._room = threading.BoundedSemaphore(parallel)

    def close(self) -> None:
        """Takes no more work and does not wait for what runs."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- up -----------------------------------------------------------------------------------------------------------

    def upload(self, files: Sequence[Outgoing], to: S3Uri) -> list[FileEntry]:
        """Uploads the files below `to` and says what they were, in the same order.

        After a failure none of them is half there: those that were done are whole, and of the others nothing is left.
        """
        batch = _Batch()
        multiparts: list[_Multipart] = []
        try:
            entries = [self._send(file, to, batch, multiparts) for file in files]
            wait(batch.tasks)
            batch.check()
            for multipart in multiparts:
                self._complete(multipart)
        except BaseException:
            for task in batch.tasks:
                task.cancel()
            wait(batch.tasks)
            for multipart in multiparts:
                self._abort(multipart)
            raise
        return entries

    def _send(self, file: Outgoing, to: S3Uri, batch: _Batch, multiparts: list[_Multipart]) -> FileEntry:
        place = to / file.name
        size = size_of(file)
        multipart = self._begin(place) if size > PART_BYTES else None
        if multipart is not None:
            multiparts.append(multipart)
        digest, sent = hashlib.sha256(), 0
        for number, data in enumerate(_parts(file.content, size), 1):
            # What has failed already makes the rest of the reading pointless.
            batch.check()
            if multipart is not None:
                self._start(batch, self._put_part, multipart, number, data)
            elif number == 1:
                self._start(batch, self._put, place, data)
            else:
                raise StoreError(f"{file.name} grew while it was uploaded to {place}: upload it when nobody writes it")
            digest.update(data)
            sent += len(data)
        return FileEntry(name=file.name, size=sent, sha256=digest.hexdigest())

    def _start(self, batch: _Batch, function: Callable[..., None], *arguments: Any) -> None:
        self._room.acquire()
        try:
            task = self._threads.submit(function, *arguments)
        except BaseException:
            self._room.release()
            raise
        batch.tasks.append(task)
        # In this order: who is let in by the release sees the failure.
        task.add_done_callback(batch.done)
        task.add_done_callback(lambda _: self._room.release())

    def _put(self, place: S3Uri, data: bytes) -> None:
        with translated(place, self._endpoint):
            self._s3.put_object(Bucket=place.bucket, Key=place.key, Body=data)

    def _begin(self, place: S3Uri) -> _Multipart:
        with translated(place, self._endpoint):
            answer = self._s3.create_multipart_upload(Bucket=place.bucket, Key=place.key)
        return _Multipart(place, str(answer["UploadId"]))

    def _put_part(self, multipart: _Multipart, number: int, data: bytes) -> None:
        place = multipart.place
        with translated(place, self._endpoint):
            answer = self._s3.upload_part(
                Bucket=place.bucket, Key=place.key, UploadId=multipart.id, PartNumber=number, Body=data
            )
        multipart.etags[number] = str(answer["ETag"])

    def _complete(self, multipart: _Multipart) -> None:
        place = multipart.place
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in sorted(multipart.etags.items())]
        with translated(place, self._endpoint):
            self._s3.complete_multipart_upload(
                Bucket=place.bucket, Key=place.key, UploadId=multipart.id, MultipartUpload={"Parts": parts}
            )
        multipart.complete = True

    def _abort(self, multipart: _Multipart) -> None:
        if multipart.complete:
            return
        # The failure that led here is the one to tell; what stays behind goes before the next try, or with the folder.
        with contextlib.suppress(StoreError), translated(multipart.place, self._endpoint):
            self._s3.abort_multipart_upload(
                Bucket=multipart.place.bucket, Key=multipart.place.key, UploadId=multipart.id
            )

    # --- down ---------------------------------------------------------------------------------------------------------

    def download(self, files: Sequence[Incoming], below: S3Uri) -> Iterator[FileEntry]:
        """Downloads the files from below that folder; yields what each of them turned out to be, as they are done.

        The paths' folders have to exist. Whoever stops before the end may leave files that are not whole.
        """
        window: deque[tuple[_Arriving, bool, Future[bytes]]] = deque()
        arriving: list[_Arriving] = []
        try:
            for incoming in files:
                file = _Arriving(incoming)
                arriving.append(file)
                place, size = below / incoming.entry.name, incoming.entry.size
                step = part_bytes(size)
                for offset in range(0, max(size, 1), step):
                    # Whoever holds parts of its own may not wait for those of others, who may do the same.
                    while not self._room.acquire(blocking=not window):
                        yield from self._arrived(window)
                    whole, last = size <= step, offset + step >= size
                    count = None if whole else min(step, size - offset)
                    task = self._threads.submit(self._get, file, place, offset, count)
                    window.append((file, last, task))
                    if len(window) >= self._parallel:
                        yield from self._arrived(window)
            while window:
                yield from self._arrived(window)
        finally:
            for _, _, task in window:
                task.cancel()
            wait([task for _, _, task in window])
            for _ in window:
                self._room.release()
            for file in arriving:
                file.close()

    def _arrived(self, window: deque[tuple[_Arriving, bool, Future[bytes]]]) -> Iterator[FileEntry]:
        file, last, task = window[0]
        data = task.result()
        window.popleft()
        self._room.release()
        file.next(data)
        if last:
            file.close()
            yield file.found

    def _get(self, file: _Arriving, place: S3Uri, offset: int, count: int | None) -> bytes:
        where = {} if count is None else {"Range": f"bytes={offset}-{offset + count - 1}"}
        with translated(place, self._endpoint):
            for tries in range(1, BODY_TRIES + 1):
                try:
                    data: bytes = self._s3.get_object(Bucket=place.bucket, Key=place.key, **where)["Body"].read()
                    break
                except SILENCE:
                    if tries == BODY_TRIES:
                        raise
                except ClientError as error:
                    if error.response.get("Error", {}).get("Code") != "InvalidRange":
                        raise
                    # The object is shorter than it should be, which the digest will tell.
                    return b""
        file.write(data, offset)
        return data


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
    # A raw read may give less than it is asked for, and parts before the last one have to be of one size.
    pieces = []
    while count > 0 and (piece := file.read(count)):
        pieces.append(piece)
        count -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
