"""Reader of the summaries of runs' stored rollouts in S3, and the lock for threads that decode rollouts.

The reader caches files, so that an unchanged file is read only once.
"""

import itertools
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TypeVar

from rlrun.storage.errors import StoreError
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.store import StoredObject

from rlrun_server.rest.base.bounded_cache import BoundedCache
from rlrun_server.rest.base.stored_files import PlatformStorage
from rlrun_server.rest.samples.sample_summaries import (
    ENTRY_BYTES,
    KeptSummary,
    RunSamples,
    merge_summaries,
    parse_part,
    split_of,
)

Run = tuple[str, str]
"""Namespace and uid."""
File = tuple[str, int, datetime]
"""Name below the folder, size and modification time."""
T = TypeVar("T")


class DecodingTurn:
    """Lock that lets one thread decode at a time, because decoding untrusted data needs several times the data's size
    in memory.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def without(self, ask: Callable[[], T]) -> T:
        """Release the lock while `ask` waits for S3, and return its result."""
        self._lock.release()
        try:
            return ask()
        finally:
            self._lock.acquire()


def rollouts_folder(root: S3Uri, run: Run) -> S3Uri:
    """Return the folder with all rollouts of a run."""
    return RunLayout.of(root.bucket, root.key, *run).root / "rollouts"


def files_below(folder: S3Uri, objects: Iterable[StoredObject]) -> list[File]:
    """Return the objects with their names relative to the folder."""
    return [(o.key.removeprefix(f"{folder.key}/"), o.size, o.modified) for o in objects]


log = logging.getLogger(__name__)

FRESH_SECONDS = 2.0
"""Seconds for which a list of a run's summaries is cached."""
OBJECTS_SECONDS = 60.0
"""Seconds for which the list of all objects of a run is cached. Only objects without a summary need the list, and such
objects are few."""
SUMMARY_BYTES = 48 * 1024**2
"""Memory for cached summaries of all runs, in bytes."""
RUN_BYTES = 24 * 1024**2
"""Maximum size of the summaries of one run, in bytes. The oldest summaries are left out."""
MAX_PART = 2 * 1024**2
"""Maximum size of a file of summaries, in bytes."""
MAX_TEXT = 32 * 1024**2
"""Maximum total size of the summary files of one run that are read, in bytes."""
MAX_PARTS = 5000
MAX_FILES = 20_000
"""Maximum number of objects of one run that are listed."""
FILE_BYTES = 400
"""Approximate memory for the name of an object, in bytes."""
PART_THREADS = 4


@dataclass(frozen=True)
class _Known:
    """Summaries of a run as they were read last."""

    samples: RunSamples
    parts: dict[File, list[KeptSummary]]
    listed: dict[str, int]
    read_at: float
    listed_at: float

    @property
    def size(self) -> int:
        """Approximate size in memory, in bytes."""
        parts = sum(summary.size for part in self.parts.values() for summary in part)
        return parts + FILE_BYTES * (len(self.parts) + len(self.listed) + 2) + ENTRY_BYTES * len(self.samples.summaries)


class SummaryReader:
    """Reads the summaries of the rollouts of each run. Summaries are at most FRESH_SECONDS old while S3 responds."""

    def __init__(self, storage: PlatformStorage, clock: Callable[[], float], turn: DecodingTurn) -> None:
        self._store = storage.store
        self._root = storage.root
        self._clock = clock
        self._turn = turn
        self._threads = ThreadPoolExecutor(PART_THREADS, "summaries")
        self._runs: BoundedCache[Run, _Known] = BoundedCache(SUMMARY_BYTES)

    def close(self) -> None:
        """Stop the threads without waiting for S3."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def read(self, run: Run) -> RunSamples:
        """Return the summaries of a run. The thread must hold the DecodingTurn. Raises StoreError if S3 fails and no
        earlier summaries are cached.
        """
        known = self._runs.get(run)
        if known is not None and self._clock() < known.read_at + FRESH_SECONDS:
            return known.samples
        try:
            loaded = self._load(run, known)
        except StoreError as error:
            if known is None:
                raise
            log.warning("the summaries of %s/%s cannot be read: %s", *run, error)
            return RunSamples(known.samples.summaries, known.samples.is_complete, is_stale=True)
        if loaded.parts or loaded.listed:
            self._runs.put(run, loaded, loaded.size)
        else:
            # Do not cache empty summaries, because a client can request any uid.
            self._runs.remove(run)
        return loaded.samples

    def _load(self, run: Run, known: _Known | None) -> _Known:
        began = self._clock()
        folder = rollouts_folder(self._root, run)
        names = files_below(folder, self._list(lambda: self._store.walk(folder / "steps"), MAX_PARTS))
        if known is not None and began < known.listed_at + OBJECTS_SECONDS:
            listed, listed_at = known.listed, known.listed_at
        else:
            objects = files_below(folder, self._list(lambda: self._store.walk_prefix(folder / "step-"), MAX_FILES))
            listed, listed_at = {name: size for name, size, _ in objects if split_of(name) is not None}, began
        parts = self._read_parts(run, sorted(names, reverse=True), {} if known is None else known.parts)
        is_complete = len(listed) < MAX_FILES and len(parts) == len(names) < MAX_PARTS
        if known is not None and parts.keys() == known.parts.keys() and listed is known.listed:
            return _Known(known.samples, known.parts, listed, began, listed_at)
        newest_first = itertools.chain.from_iterable(parts.values())
        return _Known(merge_summaries(newest_first, listed, is_complete=is_complete), parts, listed, began, listed_at)

    def _list(self, walk: Callable[[], Iterable[StoredObject]], limit: int) -> list[StoredObject]:
        return self._turn.without(lambda: list(itertools.islice(walk(), limit)))

    def _read_parts(
        self, run: Run, files: list[File], known: dict[File, list[KeptSummary]]
    ) -> dict[File, list[KeptSummary]]:
        """Return the summaries by file, newest file first, up to RUN_BYTES and MAX_TEXT."""
        parts_read: dict[File, list[KeptSummary]] = {}
        left, text = RUN_BYTES, MAX_TEXT
        for start in range(0, len(files), PART_THREADS):
            batch = [file for file in files[start : start + PART_THREADS] if file[1] <= MAX_PART]
            text -= sum(size for _, size, _ in batch)
            if text < 0:
                return parts_read
            new = [file for file in batch if file not in known]
            texts = dict(zip(new, self._turn.without(partial(self._fetch, run, new)), strict=True))
            for file in batch:
                part = known[file] if file in known else parse_part(texts.pop(file))
                left -= sum(summary.size for summary in part) + FILE_BYTES
                if left < 0:
                    return parts_read
                parts_read[file] = part
        return parts_read

    def _fetch(self, run: Run, files: list[File]) -> list[bytes]:
        folder = rollouts_folder(self._root, run)

        def fetch(file: File) -> bytes:
            # Read only the listed size, which the limits count: the file may have grown since.
            return self._store.get_range(folder / file[0], 0, file[1]) if file[1] else b""

        return list(self._threads.map(fetch, files))
