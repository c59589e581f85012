"""Reader of runs' metrics in S3. It caches files, so that an unchanged file is read only once."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from rlrun.constants import Reason
from rlrun.storage.errors import StoreError
from rlrun.storage.layout import SHARED_FOLDERS, RunLayout, S3Uri
from rlrun.storage.store import StoredObject

from rlrun_server.rest.base.bounded_cache import BoundedCache
from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.base.stored_files import PlatformStorage, store_failure
from rlrun_server.rest.base.tenant_queue import TenantQueue
from rlrun_server.rest.metrics.metric_columns import Columns, TooManyValues, read_columns
from rlrun_server.signing.credentials import CredentialsMissing

log = logging.getLogger(__name__)

THREADS = 2
WAIT_SECONDS = 25.0
"""Maximum time in seconds for which a request waits for S3."""
FRESH_SECONDS = 2.0
"""Seconds before the files of a run are listed again. Cached columns stay valid while the list does not change."""
READ_SECONDS = 20.0
"""Time limit of one read, in seconds. Files that were read before this limit are cached for the next read."""
FAILED_SECONDS = 5.0
"""Seconds before the files of a run are read again after a failure."""
REFUSED_SECONDS = 60.0
"""Seconds before a run that is too large is read again. Its files only grow."""
MAX_FAILURES = 10_000
"""Maximum number of runs whose failures are remembered."""
MAX_RUN_BYTES = 32 * 1024**2
"""Maximum size of one run's files, in bytes."""
MAX_PARTS = 5000
LIST_BYTES = 16 * 1024**2
"""Memory for cached file lists of all runs, in bytes. Lists are cached longer than columns, because a list shows
whether a client has the newest metrics.
"""
COLUMN_BYTES = 64 * 1024**2
"""Memory for cached columns of all runs, in bytes."""
PART_BYTES = 32 * 1024**2
"""Memory for cached files of all runs, in bytes."""
LIST_ENTRY_BYTES = 512
ENTRY_BYTES = 2048
FILE_BYTES = 400
"""Approximate memory for the key of each file, in bytes. LIST_ENTRY_BYTES and ENTRY_BYTES estimate the rest of a cached
file list and of cached columns, without the numbers.
"""

PartKey = tuple[str, int, datetime]
"""Key, size and modification time of a file. A file grows until the run starts the next one."""
RunKey = tuple[str, str]
"""Namespace and uid."""
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class MetricFiles:
    """List of one run's metric files."""

    files: tuple[PartKey, ...]
    digest: bytes
    """Hash of the list, equal on all replicas."""
    listed_at: float

    @property
    def size(self) -> int:
        """Approximate size in memory, in bytes."""
        return LIST_ENTRY_BYTES + FILE_BYTES * len(self.files)


@dataclass(frozen=True)
class Metrics:
    """Metrics of one run, as read from S3."""

    columns: Columns
    version: bytes
    """Version of the metrics, equal on all replicas."""
    is_stale: bool = False


class TooLarge(Exception):
    """Raised if the metric files of a run exceed MAX_RUN_BYTES or MAX_PARTS."""


class TooSlow(Exception):
    """Raised if reading takes longer than READ_SECONDS."""


REFUSED = (TooLarge, TooManyValues)
UNREADABLE = (*REFUSED, StoreError, CredentialsMissing, TimeoutError, TooSlow)
STALE = b"stale"
"""Suffix of the version of metrics that may be outdated, because S3 does not respond."""


@dataclass(frozen=True)
class FailedRead:
    """Failure to list or read the files of a run."""

    error: Exception
    until: float


class MetricReader:
    """Reads the metrics of runs. Metrics are at most FRESH_SECONDS old while S3 responds."""

    def __init__(self, storage: PlatformStorage, clock: Callable[[], float]) -> None:
        self._storage = storage
        self._clock = clock
        self._threads = TenantQueue(THREADS, "metrics")
        # A separate thread: `_threads` may wait for S3, which metrics in memory do not need.
        self._answers = TenantQueue(1, "metric-answers")
        self._lists: BoundedCache[RunKey, MetricFiles] = BoundedCache(LIST_BYTES)
        self._runs: BoundedCache[RunKey, Metrics] = BoundedCache(COLUMN_BYTES)
        self._parts: BoundedCache[PartKey, bytes] = BoundedCache(PART_BYTES)
        self._listing: dict[RunKey, asyncio.Task[MetricFiles]] = {}
        self._reading: dict[RunKey, asyncio.Task[Metrics]] = {}
        self._failures: BoundedCache[RunKey, FailedRead] = BoundedCache(MAX_FAILURES)

    async def read_version(self, namespace: str, uid: str) -> bytes | None:
        """Return the version of the run's metrics without reading them, or None if there are no files. Raises
        RestError.
        """
        key = _run_key(namespace, uid)
        known = self._lists.get(key)
        try:
            files = await self._list_files(key)
        except UNREADABLE as error:
            if known is None or not known.files or isinstance(error, REFUSED):
                raise _failure(error) from error
            return known.digest + STALE
        return files.digest if files.files else None

    async def read(self, namespace: str, uid: str) -> Metrics:
        """Return the metrics of a run, without steps if the run has no files. Raises RestError."""
        key = _run_key(namespace, uid)
        known = self._runs.get(key)
        try:
            files = await self._list_files(key)
            if known is not None and known.version == files.digest:
                return known
            return await self._share(self._reading, key, lambda: self._read_files(key, files))
        except UNREADABLE as error:
            if known is None or isinstance(error, REFUSED):
                raise _failure(error) from error
            return Metrics(known.columns, known.version + STALE, is_stale=True)

    async def compute(self, caller: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` in a thread, and return its result. Callers take turns, so that none can block the others.

        Raises RestError if too many calls of the caller are waiting.
        """
        return await self._answers.run(caller, call, *args, **kwargs)

    def close(self) -> None:
        """Stop the threads without waiting for S3."""
        self._threads.close()
        self._answers.close()

    async def _list_files(self, key: RunKey) -> MetricFiles:
        known = self._lists.get(key)
        if known is not None and self._clock() < known.listed_at + FRESH_SECONDS:
            return known
        return await self._share(self._listing, key, lambda: self._list_again(key))

    async def _share(
        self, running: dict[RunKey, asyncio.Task[T]], key: RunKey, work: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """Do the work once for all clients and return its result. Raises the error of a recent failure again."""
        failure = self._failures.get(key)
        if failure is not None and self._clock() < failure.until:
            raise failure.error.with_traceback(None)
        task = running.get(key)
        if task is None:
            task = running[key] = asyncio.create_task(work())
            task.add_done_callback(lambda done: self._end(running, key, done))
        # The work continues if one of several clients disconnects.
        return await asyncio.wait_for(asyncio.shield(task), WAIT_SECONDS)

    async def _list_again(self, key: RunKey) -> MetricFiles:
        await self._storage.renew()
        began = self._clock()
        files, digest = await self._threads.run(key[0], self._walk, key)
        listed = MetricFiles(files, digest, began)
        # Cache empty lists too, because a client can request any uid.
        self._lists.put(key, listed, listed.size)
        if not files:
            self._runs.remove(key)
        return listed

    async def _read_files(self, key: RunKey, files: MetricFiles) -> Metrics:
        if not files.files:
            return Metrics(read_columns(()), files.digest)
        await self._storage.renew()
        columns = await self._threads.run(key[0], self._load, files)
        metrics = Metrics(columns, files.digest)
        self._runs.put(key, metrics, columns.size + ENTRY_BYTES)
        return metrics

    def _walk(self, key: RunKey) -> tuple[tuple[PartKey, ...], bytes]:
        """Return the run's files and the hash of their list. Runs in a thread."""
        deadline = self._clock() + READ_SECONDS
        layout = RunLayout.of(self._storage.root.bucket, self._storage.root.key, *key)
        objects: list[StoredObject] = []
        size = 0
        for stored in self._storage.store.walk(layout.root / "metrics"):
            objects.append(stored)
            size += stored.size
            if size > MAX_RUN_BYTES or len(objects) > MAX_PARTS:
                raise TooLarge
            self._check(deadline)
        files = tuple((stored.key, stored.size, stored.modified) for stored in objects)
        return files, hashlib.sha256(repr(files).encode()).digest()

    def _load(self, files: MetricFiles) -> Columns:
        """Return the columns of the files. Reads only files that are not cached. Runs in a thread."""
        deadline = self._clock() + READ_SECONDS
        return read_columns(self._part(file, deadline) for file in files.files)

    def _check(self, deadline: float) -> None:
        if self._clock() >= deadline:
            raise TooSlow(f"reading takes longer than {READ_SECONDS:.0f} s")

    def _part(self, file: PartKey, deadline: float) -> bytes:
        self._check(deadline)
        key, size, _ = file
        if not size:
            return b""
        data = self._parts.get(file)
        if data is None:
            # Read only the listed size, which the limits count: the file may have grown since.
            data = self._storage.store.get_range(S3Uri(self._storage.root.bucket, key), 0, size)
            self._parts.put(file, data, len(data) + FILE_BYTES)
        return data

    def _end(self, running: dict[RunKey, asyncio.Task[T]], key: RunKey, task: asyncio.Task[T]) -> None:
        del running[key]
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, UNREADABLE):
            is_refused = isinstance(error, REFUSED)
            if not is_refused:
                log.warning("the metrics of %s/%s cannot be read: %s", *key, error)
            seconds = REFUSED_SECONDS if is_refused else FAILED_SECONDS
            self._failures.put(key, FailedRead(error, self._clock() + seconds), 1)
        else:
            self._failures.remove(key)


def _run_key(namespace: str, uid: str) -> RunKey:
    if namespace in SHARED_FOLDERS:
        raise RestError(
            404,
            Reason.OBJECT_NOT_FOUND,
            f"Namespace {namespace} cannot have runs, because its name is reserved for the platform.",
        )
    return namespace, uid


def _failure(error: Exception) -> RestError:
    """Return the RestError for a failed read."""
    if isinstance(error, REFUSED):
        detail = (
            f"The metrics of this run exceed {MAX_RUN_BYTES} bytes, or have too many files, steps or values. Read them "
            "with `rlrun metrics`."
        )
        return RestError(413, Reason.METRICS_TOO_LARGE, detail)
    return store_failure(error)
