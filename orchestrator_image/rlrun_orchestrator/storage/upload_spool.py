"""What waits for S3, as files: it outlives the process, and its bound is bytes on a disk instead of memory.

One file for each object, a line of JSON (which object, which lane, when) before the data, put in place by rename; so a
process that was killed leaves whole files or none, and its next one in the same pod finds them. A later version of an
object replaces the one that waits and keeps its turn. When the bound is reached the oldest rollouts go, then the oldest
metrics, and the orchestrator's state last. A disk that does not take a file costs memory: small objects are kept there.
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
    """What an object is; the lower, the sooner it is given up."""

    rollouts = 0
    metrics = 1
    state = 2


@dataclass(frozen=True)
class SpooledObject:
    """One version of one object."""

    uri: S3Uri
    lane: UploadPriority
    turn: int
    """Of the first version that waits; lower ones come first."""
    version: int
    """Grows with every `put`."""
    size: int
    """Bytes."""
    data: bytes | None = None
    """Where the disk did not take it."""


class UploadSpool:
    """Thread-safe: what is put comes from other threads than what is taken."""

    def __init__(self, folder: Path, limit: int) -> None:
        """`limit`: bytes of all objects together. Finds what an earlier process left in `folder`."""
        self.dropped = 0
        """Objects given up for want of room."""
        self.bytes = 0
        self._folder = folder
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting: dict[str, SpooledObject] = {}
        self._numbers = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._find()
        except OSError as error:
            log.warning("nothing can be kept in %s, so that little survives a loss of S3: %s", folder, error)

    def __len__(self) -> int:
        return len(self._waiting)

    def enqueue(self, uri: S3Uri, lane: UploadPriority, data: bytes) -> int:
        """Keeps this version of the object, instead of an older one, and gives its number; makes room by giving up
        what matters less. What finds no room itself is dropped.
        """
        with self._lock:
            self._numbers += 1
            number, before = self._numbers, self._waiting.pop(str(uri), None)
            new = SpooledObject(uri, lane, before.turn if before is not None else number, number, len(data))
            room = self._make_room(new.size - (before.size if before is not None else 0), lane)
            kept = self._write(new, data) if room else None
            if kept is not None:
                self._waiting[str(uri)] = kept
                self.bytes += kept.size
                if before is not None:
                    self._forget(before)
            else:
                self._drop(new)
                if before is not None:
                    self._waiting[str(uri)] = before
            return number

    def next(self, *lanes: UploadPriority) -> SpooledObject | None:
        """The object of these lanes whose turn it is; it stays until `written`."""
        with self._lock:
            found = [w for w in self._waiting.values() if w.lane in lanes]
        return min(found, key=lambda w: w.turn, default=None)

    def read(self, waiting: SpooledObject) -> bytes | None:
        """Its data; None when a newer version has replaced it since, or the file is gone."""
        with self._lock:
            if self._waiting.get(str(waiting.uri)) != waiting:
                return None
            if waiting.data is not None:
                return waiting.data
            try:
                return self._path(waiting).read_bytes().partition(b"\n")[2]
            except OSError as error:
                log.warning("%s cannot be read again: %s", waiting.uri, error)
                del self._waiting[str(waiting.uri)]
                self._forget(waiting)
                self.dropped += 1
                return None

    def mark_uploaded(self, waiting: SpooledObject) -> None:
        """This version is in S3; a newer one still waits."""
        with self._lock:
            if self._waiting.get(str(waiting.uri)) == waiting:
                del self._waiting[str(waiting.uri)]
                self._forget(waiting)

    def pending_version(self, uri: S3Uri) -> bytes | None:
        """What an earlier process wanted to write to `uri` and did not; None when nothing waits."""
        waiting = self._waiting.get(str(uri))
        return self.read(waiting) if waiting is not None else None

    # --- under the lock -----------------------------------------------------------------------------------------------

    def _find(self) -> None:
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
                log.warning("%s is none of our files and stays: %s", path, error)
        if self._waiting:
            log.info("%d objects were left unwritten by an earlier process", len(self._waiting))

    def _write(self, waiting: SpooledObject, data: bytes) -> SpooledObject | None:
        path = self._path(waiting)
        partial = path.with_name(path.name + PARTIAL)
        head = {"uri": str(waiting.uri), "lane": waiting.lane.name, "turn": waiting.turn}
        for _ in range(2):
            try:
                partial.write_bytes(json.dumps(head).encode() + b"\n" + data)
                partial.rename(path)
                return waiting
            except OSError as error:
                log.warning("%s does not take %s: %s", self._folder, waiting.uri, error)
                with contextlib.suppress(OSError):
                    partial.unlink(missing_ok=True)
                # A full disk is a bound that was reached early.
                if not self._give_up_oldest(UploadPriority.rollouts):
                    break
        if waiting.lane is UploadPriority.rollouts:
            return None
        return SpooledObject(waiting.uri, waiting.lane, waiting.turn, waiting.version, waiting.size, data)

    def _make_room(self, size: int, lane: UploadPriority) -> bool:
        while self.bytes + size > self._limit:
            if size > self._limit or not self._give_up_oldest(min(lane, UploadPriority.metrics)):
                return False
        return True

    def _give_up_oldest(self, highest: UploadPriority) -> bool:
        """Gives up one object of a lane up to `highest`, the lowest and oldest first; False when there is none."""
        found = [w for w in self._waiting.values() if w.lane <= highest]
        if not found:
            return False
        oldest = min(found, key=lambda w: (w.lane, w.turn))
        del self._waiting[str(oldest.uri)]
        self._forget(oldest)
        self._drop(oldest)
        return True

    def _drop(self, waiting: SpooledObject) -> None:
        self.dropped += 1
        log.warning("S3 is away for too long: %s is given up for want of room", waiting.uri)

    def _forget(self, waiting: SpooledObject) -> None:
        self.bytes -= waiting.size
        if waiting.data is None:
            with contextlib.suppress(OSError):
                self._path(waiting).unlink(missing_ok=True)

    def _path(self, waiting: SpooledObject) -> Path:
        return self._folder / f"{waiting.version:012d}"
