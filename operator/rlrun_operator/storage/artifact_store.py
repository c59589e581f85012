"""S3 access of the operator: boto3 in a bounded thread pool, with time limits, circuit breakers and cached checks.

Callers do not wait long if S3 does not respond: a call ends after a few seconds without a response. The endpoint's
circuit breaker then makes later calls fail immediately, except for one probe after each pause.
"""

import asyncio
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from rlrun.api.base.s3_connection import S3Connection
from rlrun.api.usage import MAX_FILE_BYTES, UsageRecord, with_records
from rlrun.constants import Reason
from rlrun.garbage_collection.installation import InstallationMismatch, ensure_mark
from rlrun.protocol.problem import Problem
from rlrun.storage.layout import MANIFEST, RunLayout, S3Uri, step_of
from rlrun.storage.manifest import EXPIRES_AT, MAX_FILES, MAX_MANIFEST_BYTES, FileEntry, Manifest, expiry_of
from rlrun.storage.store import (
    ArtifactChanged,
    BodyInterrupted,
    Corrupt,
    NotFound,
    ObjectTooLarge,
    Store,
    StoredObject,
    StoreError,
    Unreachable,
)

from rlrun_operator.planning.actions import RunFilesDeletion
from rlrun_operator.planning.artifact_catalog import ArtifactObjectKind, ObservedArtifact
from rlrun_operator.planning.artifacts import FOLDER_KINDS
from rlrun_operator.runtime.circuit_breaker import CircuitBreaker, Permit
from rlrun_operator.runtime.metrics import S3_BREAKER_OPEN, S3_CALLS
from rlrun_operator.storage.store_call import (
    DEFAULT_LIMITS,
    REQUEST_LIMITS,
    CallLimits,
    CurrentCall,
    StoreCall,
    StoreTimeout,
)

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class ReadyArtifact:
    """Artifact whose object is Ready."""

    size: int
    """Total size of the files in bytes, without the manifest."""
    digest: str = ""
    """Digest in the status of the object."""
    written: datetime | None = None
    """Time at which S3 received the manifest that was last verified against the digest."""


ReadyArtifacts = Mapping[tuple[str, int], ReadyArtifact]
"""Ready artifacts by kind and step."""

LARGE_MANIFEST = threading.Semaphore(1)
"""Lock held while a manifest of more than LARGE_BYTES is read, because parsing needs up to 30 times its size."""
LARGE_BYTES = 64 * 1024
NAME_CHARACTERS = 200
"""Maximum number of characters of a file name in a message."""
LARGEST_REWARD = 1e300
MAX_OBJECTS = 200_000
"""Maximum number of objects in a run's folder of checkpoints, and in its folder of adapters. 10,000 checkpoints of 16
files are below this limit. A listing of 200,000 objects takes 30 to 100 MiB, and on a slow node more than the permitted
20 s.
"""
MAX_ARTIFACT_OBJECTS = 2 * MAX_FILES
"""Maximum number of objects in the folder of one artifact. An interrupted upload may leave a second object per file."""
CHECK_SECONDS = 10.0
"""Seconds for which a check of bucket and credentials is cached."""


class CircuitOpen(Unreachable):
    """Raised instead of sending a request while S3 is considered down."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(
            f"the S3 endpoint {endpoint} does not respond to the operator, which retries every few seconds: check the "
            f"S3 service, the endpoint's DNS name, and that NetworkPolicies allow the operator to reach it"
        )


class TooManyObjects(StoreError):
    """Raised if a folder contains more objects than the operator lists."""

    reason = Reason.S3_TOO_MANY_OBJECTS

    def __init__(self, folder: object, limit: int) -> None:
        super().__init__(
            f"{folder} contains more than {limit:,} objects, so the operator does not list it: use an S3 client to "
            f"delete the objects that belong to no artifact, and stop the run if its trainer writes such objects"
        )


class CallOutcome(StrEnum):
    """Outcome of a call, for the circuit breaker and the metric."""

    ANSWERED = "answered"
    FAILED = "failed"
    ABANDONED = "abandoned"
    REFUSED = "refused"


# Prometheus sees no increase of a series that begins with 1.
for _outcome in CallOutcome:
    S3_CALLS.labels(_outcome)


@dataclass(frozen=True)
class Installation:
    """Location in the bucket, and the cluster that may delete files there."""

    root: S3Uri
    cluster: str
    """UID of the cluster."""


class ArtifactStore:
    """S3 operations of the operator. `may_write` returns whether this process holds the Lease, and is called from
    threads.

    Methods that use S3 raise StoreError, LeaseLost if they would write without the Lease, and ValueError for an invalid
    URI. Methods that delete files, or allow their deletion, raise InstallationMismatch (a StoreError) unless the
    bucket's mark, the object that names the cluster that may delete files, names this cluster.
    """

    def __init__(
        self,
        threads: int,
        may_write: Callable[[], bool],
        *,
        limits: CallLimits = DEFAULT_LIMITS,
        make_breaker: Callable[[], CircuitBreaker] = CircuitBreaker,
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="s3")
        self._may_write = may_write
        self._limits = limits
        self._breakers: defaultdict[str, CircuitBreaker] = defaultdict(make_breaker)
        self._current = CurrentCall()
        self._stores: dict[tuple[tuple[str, str], ...], Store] = {}
        self._stores_lock = threading.Lock()
        self.installation: Installation | None = None
        """Location of the bucket's mark, and the cluster that it must name. None until they are known; until then,
        nothing may be deleted.
        """
        self._marked_until = -math.inf
        self._checks: dict[tuple[object, str], tuple[float, Problem | None]] = {}

    def close(self) -> None:
        """Stop the threads and close the connections, without waiting for running calls."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for store in self._stores.values():
            store.close()

    async def check(self, variables: Mapping[str, str], bucket: str) -> Problem | None:
        """Return the reason why the bucket cannot be used with these AWS_* variables, or None if it can."""
        key = (tuple(sorted(variables.items())), bucket)
        known = self._checks.get(key)
        if known is not None and time.monotonic() - known[0] < CHECK_SECONDS:
            return known[1]
        try:
            await self._call(variables, lambda store: store.check(S3Uri(bucket, "")))
            problem = None
        except Unreachable as error:
            # Do not cache failures: the circuit breaker limits retries.
            return error.problem
        except StoreError as error:
            problem = error.problem
        self._checks = {key: (time.monotonic(), problem)}
        return problem

    async def list(
        self, variables: Mapping[str, str], layout: RunLayout, ready: ReadyArtifacts
    ) -> list[ObservedArtifact]:
        """Return the run's checkpoints and adapters, verified against their manifests.

        A manifest is read again unless its modification time and the total size of its files equal those recorded in
        `ready`.
        """
        return await self._call(variables, lambda store: _list(store, layout, ready))

    async def verify(self, variables: Mapping[str, str], uri: str, digest: str = "") -> str | Problem:
        """Return the digest of an artifact's manifest, or why the artifact is incomplete or its digest is not `digest`.

        An empty `digest` is not compared.
        """
        return await self._call(variables, lambda store: _verify(store, S3Uri.parse(uri), digest))

    async def put(self, variables: Mapping[str, str], uri: str, data: bytes) -> None:
        """Write one file."""
        silence = self._limits.silence_of_upload(len(data))
        await self._call(variables, lambda store: store.put_bytes(S3Uri.parse(uri), data), silence)

    async def write_tombstone(self, variables: Mapping[str, str], uri: str, data: bytes) -> None:
        """Write a tombstone, which allows the deletion of files."""

        def work(store: Store) -> None:
            self._require_mark(store)
            store.put_bytes(S3Uri.parse(uri), data)

        await self._call(variables, work)

    async def add_usage(self, variables: Mapping[str, str], uri: str, records: Sequence[UsageRecord]) -> None:
        """Add missing records to a file of the usage log. The file must not be written concurrently."""
        await self._call(variables, lambda store: _add_usage(store, S3Uri.parse(uri), records))

    async def delete(self, variables: Mapping[str, str], uri: str) -> None:
        """Delete a folder if it exists."""

        def work(store: Store) -> None:
            self._require_mark(store)
            store.delete_prefix(S3Uri.parse(uri))

        await self._call(variables, work)

    async def purge(self, variables: Mapping[str, str], purge: RunFilesDeletion) -> None:
        """Delete all files of a run except those in the folders `purge.keep`."""
        root, keep = S3Uri.parse(purge.root), [S3Uri.parse(uri) for uri in purge.keep]

        def work(store: Store) -> None:
            self._require_mark(store)
            store.delete_prefix(root, keep)

        await self._call(variables, work)

    async def mark_installation(self, variables: Mapping[str, str]) -> None:
        """Write the bucket's mark if it is missing. Raises InstallationMismatch if the mark names another cluster or
        cannot be read, or if `installation` is None.
        """
        await self._call(variables, self._require_mark)

    def _require_mark(self, store: Store) -> None:
        if time.monotonic() < self._marked_until:
            return
        if self.installation is None:
            raise InstallationMismatch(
                "the operator has not read the UID of its cluster yet, so nothing is deleted; the deletion is retried"
            )
        ensure_mark(store, self.installation.root, self.installation.cluster)
        self._marked_until = time.monotonic() + CHECK_SECONDS

    async def _call(
        self, variables: Mapping[str, str], work: Callable[[Store], T], silence_seconds: float | None = None
    ) -> T:
        endpoint = S3Connection.of_variables(variables).service_name
        breaker = self._breakers[endpoint]
        permit = breaker.acquire()
        if permit is None:
            S3_CALLS.labels(CallOutcome.REFUSED).inc()
            raise CircuitOpen(endpoint)
        call = StoreCall(
            self._may_write,
            silence_seconds=self._limits.silence_seconds if silence_seconds is None else silence_seconds,
            total_seconds=self._limits.total_seconds,
        )
        try:
            result = await self._wait(call, endpoint, variables, work)
        except BaseException as error:
            outcome = outcome_of(error, is_answered=call.is_answered)
            self._record(endpoint, permit, outcome, error)
            if outcome is CallOutcome.FAILED and not breaker.is_closed:
                # Use the same text as for refused calls, so that a run's status does not change with each probe.
                raise CircuitOpen(endpoint) from error
            raise
        self._record(endpoint, permit, CallOutcome.ANSWERED)
        return result

    async def _wait(
        self, call: StoreCall, endpoint: str, variables: Mapping[str, str], work: Callable[[Store], T]
    ) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._pool, self._work, call, variables, work)
        try:
            while not future.done():
                if call.seconds_left <= 0:
                    raise call.timeout(endpoint)
                await asyncio.wait({future}, timeout=call.seconds_left)
            return future.result()
        finally:
            call.end()
            future.cancel()

    def _work(self, call: StoreCall, variables: Mapping[str, str], work: Callable[[Store], T]) -> T:
        """Run the call in a thread of the pool."""
        store = self._store(variables)
        call.begin()
        self._current.call = call
        try:
            return work(store)
        finally:
            self._current.call = None

    def _store(self, variables: Mapping[str, str]) -> Store:
        key = tuple(sorted(variables.items()))
        with self._stores_lock:
            if key not in self._stores:
                store = Store.from_variables(variables, REQUEST_LIMITS)
                # boto3 searches for the credentials of a workload identity once per client.
                store.require_credentials()
                store.watch_requests(self._current.before_request, self._current.after_response, self._current.on_data)
                # The Secret has changed, so the old credentials are obsolete.
                for old in self._stores.values():
                    old.close()
                self._stores = {key: store}
            return self._stores[key]

    def _record(self, endpoint: str, permit: Permit, outcome: CallOutcome, error: BaseException | None = None) -> None:
        breaker = self._breakers[endpoint]
        was_closed = breaker.is_closed
        if outcome is CallOutcome.ANSWERED:
            breaker.record_success(permit)
        elif outcome is CallOutcome.FAILED:
            breaker.record_failure(permit)
        else:
            breaker.abandon(permit)
        S3_CALLS.labels(outcome).inc()
        S3_BREAKER_OPEN.labels(endpoint).set(not breaker.is_closed)
        if was_closed and not breaker.is_closed:
            log.warning("S3 at %s does not respond; calls fail immediately until it does: %s", endpoint, error)
        elif breaker.is_closed and not was_closed:
            log.info("S3 at %s responds again", endpoint)


def _add_usage(store: Store, uri: S3Uri, records: Sequence[UsageRecord]) -> None:
    try:
        data = store.get_bytes(uri, MAX_FILE_BYTES)
    except NotFound:
        data = b""
    content = with_records(data, records)
    if content is not None:
        store.put_bytes(uri, content)


def outcome_of(error: BaseException, *, is_answered: bool) -> CallOutcome:
    """Return the outcome of a call that ended with `error`. `is_answered` means that S3 responded to one of the call's
    requests.
    """
    if isinstance(error, StoreTimeout | BodyInterrupted):
        # Tenants decide how large a run's objects are, so S3 is not down if it has started to send one.
        return CallOutcome.ANSWERED if is_answered else CallOutcome.ABANDONED
    if isinstance(error, Unreachable):
        return CallOutcome.FAILED
    # A rejected request is a response. A cancellation or the loss of the Lease says nothing about S3.
    return CallOutcome.ANSWERED if isinstance(error, StoreError) else CallOutcome.ABANDONED


def _walk(store: Store, uri: S3Uri, limit: int) -> Iterator[StoredObject]:
    """Yield every object below the folder. Raises TooManyObjects after `limit` objects."""
    for number, stored in enumerate(store.walk(uri)):
        if number >= limit:
            raise TooManyObjects(uri, limit)
        yield stored


def _list(store: Store, layout: RunLayout, ready: ReadyArtifacts) -> list[ObservedArtifact]:
    artifacts = []
    for folder, kind in FOLDER_KINDS.items():
        folder_uri = layout.root / folder
        # Keep only the sizes of the files, because a trainer may write as many files as the limit allows.
        folders: dict[str, dict[str, int]] = defaultdict(dict)
        written: dict[str, datetime] = {}
        # One listing for all folders, instead of one request per checkpoint and reconcile.
        for stored in _walk(store, folder_uri, MAX_OBJECTS):
            head, _, inner = stored.key.removeprefix(f"{folder_uri.key}/").partition("/")
            folders[head][inner] = stored.size
            if inner == MANIFEST:
                written[head] = stored.modified
        for name, sizes in sorted(folders.items()):
            try:
                step = step_of(name)
            except ValueError:
                continue
            known = ready.get((kind, step))
            artifacts.append(_inspect(store, kind, step, folder_uri / name, sizes, written.get(name), known))
    return artifacts


def _inspect(
    store: Store,
    kind: ArtifactObjectKind,
    step: int,
    uri: S3Uri,
    sizes: Mapping[str, int],
    written: datetime | None,
    known: ReadyArtifact | None,
) -> ObservedArtifact:
    """Return the artifact in a folder with files of these sizes, whose manifest S3 received at `written`."""
    if written is None:
        missing = f"{MANIFEST} is missing in S3: the artifact is being uploaded again, or was deleted."
        return ObservedArtifact(kind, step, str(uri), problem=None if known is None else missing)
    if known is not None and written == known.written and sum(sizes.values()) - sizes[MANIFEST] == known.size:
        return ObservedArtifact(kind, step, str(uri), digest=known.digest, written=written)
    try:
        stored = _read_manifest(store, uri, sizes)
    except Corrupt as error:
        return ObservedArtifact(kind, step, str(uri), problem=str(error))
    if stored is None:
        return ObservedArtifact(kind, step, str(uri))
    return ObservedArtifact(kind, step, str(uri), stored.content, stored.problem, stored.digest, written)


@dataclass(frozen=True)
class _KeptManifest:
    """Parts of a manifest that the operator caches."""

    content: Manifest
    digest: str
    problem: str | None
    """Message if the files differ from the manifest."""


def _read_manifest(store: Store, uri: S3Uri, sizes: Mapping[str, int]) -> _KeptManifest | None:
    """Return the artifact's manifest, or None if it was deleted. `sizes` are from the listing. Raises Corrupt."""
    if sizes[MANIFEST] > MAX_MANIFEST_BYTES:
        raise ObjectTooLarge(uri / MANIFEST, MAX_MANIFEST_BYTES)
    with LARGE_MANIFEST if sizes[MANIFEST] > LARGE_BYTES else nullcontext():
        stored = store.read_stored_manifest(uri)
        if stored is None:
            return None
        return _KeptManifest(_summary(stored.content), stored.digest, _missing_files(stored.content, sizes))


def _summary(manifest: Manifest) -> Manifest:
    """Return the fields of the manifest that artifact objects show. Other fields are dropped, because a run could make
    them arbitrarily large.
    """
    details: dict[str, Any] = {}
    reward = manifest.details.get("reward")
    if isinstance(reward, int | float) and abs(reward) < LARGEST_REWARD:
        details["reward"] = reward
    if (expires_at := expiry_of(manifest)) is not None:
        details[EXPIRES_AT] = expires_at.isoformat()
    total = FileEntry(name="total", size=manifest.size, sha256="")
    return Manifest(
        kind=manifest.kind,
        files=[total],
        created_at=manifest.created_at,
        step=manifest.step,
        policy_version=manifest.policy_version,
        details=details,
    )


def _missing_files(manifest: Manifest, files: Mapping[str, int]) -> str | None:
    """Return a message about files that differ from the manifest, or None."""
    wrong = [entry for entry in manifest.files if files.get(entry.stored_as) != entry.size]
    if not wrong:
        return None
    first = wrong[0]
    held = files.get(first.stored_as)
    fault = "is missing" if held is None else f"is {held} bytes instead of {first.size}"
    more = ""
    if len(wrong) == 2:
        more = "; 1 other file is also missing or has the wrong size"
    elif len(wrong) > 2:
        more = f"; {len(wrong) - 1} other files are also missing or have the wrong size"
    what = f"Incomplete in S3: {first.stored_as[:NAME_CHARACTERS]} {fault}{more}."
    return f"{what} Use an older artifact, and delete this object with its files."


def _verify(store: Store, uri: S3Uri, digest: str) -> str | Problem:
    prefix = f"{uri.key}/"
    sizes = {stored.key.removeprefix(prefix): stored.size for stored in _walk(store, uri, MAX_ARTIFACT_OBJECTS)}
    try:
        stored = _read_manifest(store, uri, sizes) if MANIFEST in sizes else None
    except Corrupt as error:
        return Problem(reason=Reason.CHECKPOINT_INCOMPLETE, message=str(error))
    if stored is None:
        return Problem(reason=Reason.CHECKPOINT_INCOMPLETE, message=f"{uri} has no {MANIFEST}")
    if digest and stored.digest != digest:
        return ArtifactChanged(uri, digest, stored.digest).problem
    if stored.problem is not None:
        return Problem(reason=Reason.CHECKPOINT_INCOMPLETE, message=stored.problem)
    return stored.digest
