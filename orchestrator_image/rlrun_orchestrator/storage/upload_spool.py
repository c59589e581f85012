"""Spool of objects that wait for upload to S3. It uses files, which survive the process and take no memory.

Each object is one file: a line of JSON (uri, priority, turn), then the data, put in place by rename. A killed process
therefore leaves only complete files, which the next process in the same pod finds. A newer version of an object
replaces the waiting version and takes over its turn. At the size limit, the oldest rollouts are dropped first, then
the oldest metrics. The orchestrator's state is dropped only if it does not fit after that. If the disk rejects a file,
rollouts are dropped, and other objects are kept in memory.
"""

import contextlib
import json
import logging
import threading
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from rlrun.storage.layout import S3Uri

log = logging.getLogger(__name__)

PARTIAL = ".partial"


class UploadPriority(IntEnum):
    """Priority of an object. Objects of lower priority are dropped first."""

    rollouts = 0
    metrics = 1
    state = 2


@dataclass(frozen=True)
class SpooledObject:
    """Version of an object that waits for upload."""

    uri: S3Uri
    priority: UploadPriority
    turn: int
    """Number of the first waiting version. Lower numbers are uploaded first."""
    version: int
    """Number of this version, which increases with every `enqueue`."""
    size: int
    """Size in bytes."""
    data: bytes | None = None
    """Data of an object that the disk rejected."""


class UploadSpool:
    """Thread-safe spool: objects are added and uploaded by different threads."""

    def __init__(self, folder: Path, limit: int) -> None:
        """`limit` is the maximum total size of all objects in bytes. Loads what an earlier process left in `folder`."""
        self.dropped = 0
        """Number of dropped objects."""
        self.bytes = 0
        self._folder = folder
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting: dict[str, SpooledObject] = {}
        self._numbers = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._load_files()
        except OSError as error:
            log.warning("cannot use %s as the spool, so rollouts may not be uploaded: %s", folder, error)

    def __len__(self) -> int:
        return len(self._waiting)

    def enqueue(self, uri: S3Uri, priority: UploadPriority, data: bytes) -> int:
        """Add a version of an object, replacing an older version, and return the new version's number. If there is no
        space, the oldest objects of the same or a lower priority are dropped, but no state. If that is not enough, the
        new version is dropped and the older one kept.
        """
        with self._lock:
            self._numbers += 1
            number, before = self._numbers, self._waiting.pop(str(uri), None)
            new = SpooledObject(uri, priority, before.turn if before is not None else number, number, len(data))
            fits = self._make_space(new.size - (before.size if before is not None else 0), priority)
            written = self._write(new, data) if fits else None
            if written is not None:
                self._waiting[str(uri)] = written
                self.bytes += written.size
                if before is not None:
                    self._forget(before)
            else:
                self._drop(new)
                if before is not None:
                    self._waiting[str(uri)] = before
            return number

    def next(self, *priorities: UploadPriority) -> SpooledObject | None:
        """Return the next object of these priorities. The object stays in the spool until `mark_uploaded`."""
        with self._lock:
            candidates = [w for w in self._waiting.values() if w.priority in priorities]
        return min(candidates, key=lambda w: w.turn, default=None)

    def read(self, waiting: SpooledObject) -> bytes | None:
        """Return the object's data, or None if a newer version has replaced it. If its file cannot be read, drops the
        object and returns None.
        """
        with self._lock:
            if self._waiting.get(str(waiting.uri)) != waiting:
                return None
            if waiting.data is not None:
                return waiting.data
            try:
                return self._path(waiting).read_bytes().partition(b"\n")[2]
            except OSError as error:
                log.warning("dropping %s: its spool file cannot be read: %s", waiting.uri, error)
                del self._waiting[str(waiting.uri)]
                self._forget(waiting)
                self.dropped += 1
                return None

    def mark_uploaded(self, waiting: SpooledObject) -> None:
        """Remove this version. A newer version is kept."""
        with self._lock:
            if self._waiting.get(str(waiting.uri)) == waiting:
                del self._waiting[str(waiting.uri)]
                self._forget(waiting)

    def pending_version(self, uri: S3Uri) -> bytes | None:
        """Return the data that waits for upload to `uri`, or None."""
        waiting = self._waiting.get(str(uri))
        return self.read(waiting) if waiting is not None else None

    # --- under the lock -----------------------------------------------------------------------------------------------

    def _load_files(self) -> None:
        for path in sorted(self._folder.iterdir()):
            try:
                if path.name.endswith(PARTIAL):
                    path.unlink()
                    continue
                with path.open("rb") as file:
                    head = json.loads(file.readline())
                    size = path.stat().st_size - file.tell()
                uri, number = S3Uri.parse(head["uri"]), int(path.name)
                older = self._waiting.pop(str(uri), None)
                if older is not None:
                    self._forget(older)
                self._waiting[str(uri)] = SpooledObject(
                    uri, UploadPriority[head["lane"]], int(head["turn"]), number, size
                )
                self.bytes += size
                self._numbers = max(self._numbers, number)
            except (KeyError, TypeError, ValueError) as error:
                log.warning("ignoring %s: not a spool file (%s)", path, error)
        if self._waiting:
            log.info("an earlier process left %d objects to upload", len(self._waiting))

    def _write(self, waiting: SpooledObject, data: bytes) -> SpooledObject | None:
        path = self._path(waiting)
        partial = path.with_name(path.name + PARTIAL)
        head = {"uri": str(waiting.uri), "lane": waiting.priority.name, "turn": waiting.turn}
        for _ in range(2):
            try:
                partial.write_bytes(json.dumps(head).encode() + b"\n" + data)
                partial.rename(path)
                return waiting
            except OSError as error:
                log.warning("could not write %s to %s: %s", waiting.uri, self._folder, error)
                with contextlib.suppress(OSError):
                    partial.unlink(missing_ok=True)
                # A full disk is treated like the size limit.
                if not self._drop_oldest(UploadPriority.rollouts):
                    break
        if waiting.priority is UploadPriority.rollouts:
            return None
        return SpooledObject(waiting.uri, waiting.priority, waiting.turn, waiting.version, waiting.size, data)

    def _make_space(self, size: int, priority: UploadPriority) -> bool:
        while self.bytes + size > self._limit:
            if size > self._limit or not self._drop_oldest(min(priority, UploadPriority.metrics)):
                return False
        return True

    def _drop_oldest(self, highest: UploadPriority) -> bool:
        """Drop one object of a priority up to `highest`, lowest priority and oldest first. Returns False if there is
        none.
        """
        candidates = [w for w in self._waiting.values() if w.priority <= highest]
        if not candidates:
            return False
        oldest = min(candidates, key=lambda w: (w.priority, w.turn))
        del self._waiting[str(oldest.uri)]
        self._forget(oldest)
        self._drop(oldest)
        return True

    def _drop(self, waiting: SpooledObject) -> None:
        self.dropped += 1
        log.warning(
            "dropping %s: the spool has reached its limit of %d bytes, or its disk rejects files",
            waiting.uri,
            self._limit,
        )

    def _forget(self, waiting: SpooledObject) -> None:
        self.bytes -= waiting.size
        if waiting.data is None:
            with contextlib.suppress(OSError):
                self._path(waiting).unlink(missing_ok=True)

    def _path(self, waiting: SpooledObject) -> Path:
        return self._folder / f"{waiting.version:012d}"
