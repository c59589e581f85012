"""Garbage collection by the operator: periodic sweeps of the bucket and the cluster in a separate thread.

A sweep uses its own S3 client, pauses before each request to S3, and is limited in time and memory, so that it does not
delay reconciles. It sends no more requests once the operator has lost the Lease or is shutting down. A sweep applies
the same rules as `rlrun gc` (`rlrun.garbage_collection`).
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import CancelledError
from datetime import UTC, datetime
from typing import Any, TypeVar

from rlrun.garbage_collection.cluster_source import ClusterSource
from rlrun.garbage_collection.planner import (
    FOLDER,
    TOMBSTONE,
    UPLOAD,
    GarbageItem,
    GarbageReason,
    find_unknown,
    plan_deletions,
)
from rlrun.garbage_collection.report import UNKNOWN_ADVICE, line, parse_age
from rlrun.garbage_collection.sweep import Sweep, SweepStopped
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import ALL, SECRET, ResourceKind
from rlrun.kube.objects import Labels, Obj
from rlrun.protocol.problem import Problem
from rlrun.storage.errors import StoreError
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import Store
from typing_extensions import override

from rlrun_operator.cluster.tenants import TenancyProblem
from rlrun_operator.config.settings import GarbageSettings, OperatorSettings
from rlrun_operator.runtime.leader_election import LeaseLost
from rlrun_operator.runtime.metrics import GARBAGE_ITEMS, GARBAGE_SWEEPS
from rlrun_operator.storage.store_call import REQUEST_LIMITS, CallEnded, StoreCall

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_SECONDS = 600.0
"""Maximum seconds from the start of the operator to the first sweep."""
SWEEP_SECONDS = 3600.0
"""Time limit in seconds for each of a sweep's two parts, the listing and the deletions. The next sweep deletes the
rest.
"""
PAUSE_SECONDS = 0.05
"""Pause in seconds before each request to S3. A page of a listing takes about as long to parse, and parsing delays the
event loop."""
LIMIT = 200_000
"""Maximum number of folders, of uploads, and of tombstones in a sweep. Each of the three lists takes about 75 MiB."""
LOGGED = 200
"""Maximum number of garbage items, and of unknown items, that a sweep logs."""


class GarbageCollector:
    """Runs the operator's sweeps, in the process that holds the Lease."""

    def __init__(
        self,
        cluster: AsyncKubeClient,
        settings: OperatorSettings,
        garbage: GarbageSettings,
        variables: Callable[[], Awaitable[Mapping[str, str] | Problem]],
        may_write: Callable[[], bool],
        tenancy_problem: TenancyProblem,
    ) -> None:
        """`variables` returns the AWS_* variables of the operator's S3 client, or the reason why there are none.
        `may_write` returns whether this process holds the Lease, and is called from threads.
        """
        self._cluster = cluster
        self._settings = settings
        self._garbage = garbage
        self._variables = variables
        self._may_write = may_write
        self._tenancy_problem = tenancy_problem
        self._root = S3Uri(settings.s3.bucket, settings.s3.prefix.strip("/"))

    async def run(self) -> None:
        """Sweep at the configured interval until cancelled. Raises LeaseLost."""
        interval = parse_age(self._garbage.interval).total_seconds()
        await asyncio.sleep(min(interval, FIRST_SECONDS))
        while True:
            await self.sweep()
            await asyncio.sleep(interval)

    async def sweep(self) -> None:
        """List garbage and, if `gc.delete` is set, delete it. Failures are logged and counted. Raises LeaseLost."""
        try:
            problem = await self._sweep()
        except (StoreError, ApiError, SweepStopped) as error:
            problem = str(error)
        except TimeoutError:
            problem = f"a part of the sweep took more than {SWEEP_SECONDS:.0f} s"
        except LeaseLost:
            raise
        except Exception as error:
            # One odd object, file or setting must not end the operator.
            log.exception("Garbage collection failed")
            problem = repr(error)
        GARBAGE_SWEEPS.labels("completed" if problem is None else "failed").inc()
        if problem is not None:
            log.warning("Garbage collection failed; retrying after %s: %s", self._garbage.interval, problem)

    async def _sweep(self) -> str | None:
        """Sweep once. Returns why the sweep or a deletion failed, or None."""
        variables = await self._variables()
        if isinstance(variables, Problem):
            return variables.message
        now, age = datetime.now(UTC), parse_age(self._garbage.older_than)

        def plan(sweep: Sweep) -> tuple[list[GarbageItem], list[GarbageItem], tuple[str, ...]]:
            snapshot = sweep.take_snapshot()
            return plan_deletions(snapshot, now, age), find_unknown(snapshot, now, age), snapshot.notes

        items, unknown, notes = await self._in_thread(variables, plan)
        counts = Counter(item.reason for item in [*items, *unknown])
        for reason in GarbageReason:
            GARBAGE_ITEMS.labels(reason.value).set(counts[reason])
        for note in notes:
            log.info("Garbage collection: %s", note)
        verb = "will be deleted" if self._garbage.delete else "can be deleted"
        log.info("Garbage collection: items that %s: %d; unknown items, kept: %d", verb, len(items), len(unknown))
        for found in (items, unknown):
            for item in found[:LOGGED]:
                log.info("Garbage collection: %s", line(item, now))
            if len(found) > LOGGED:
                log.info("Garbage collection: further items that are not shown: %d", len(found) - LOGGED)
        if unknown:
            log.info("Garbage collection: %s", UNKNOWN_ADVICE.format(count=len(unknown)))
        # The operator has no rights on objects in namespaces that are not tenants. The files there are in its bucket.
        chosen = [
            item
            for item in items
            if item.kind in (FOLDER, TOMBSTONE, UPLOAD) or self._tenancy_problem(item.namespace) is None
        ]
        if not self._garbage.delete or not chosen:
            return None
        removed = await self._in_thread(variables, lambda sweep: list(sweep.remove(chosen, now, age)))
        failed = [one for one in removed if one.problem is not None]
        log.info("Garbage collection: %d of %d items deleted", len(removed) - len(failed), len(removed))
        return (
            f"{len(failed)} of {len(removed)} items could not be deleted. The first is {failed[0].item.name}: "
            f"{failed[0].problem}"
            if failed
            else None
        )

    async def _in_thread(self, variables: Mapping[str, str], work: Callable[[Sweep], T]) -> T:
        """Run one part of a sweep in a thread. Raises TimeoutError after SWEEP_SECONDS, StoreError if there are no
        credentials, and any exception of `work`.
        """
        call = StoreCall(self._may_write, silence_seconds=SWEEP_SECONDS, total_seconds=SWEEP_SECONDS)
        source = OperatorSource(self._cluster, asyncio.get_running_loop(), call)
        namespaces = frozenset(self._settings.watch_namespaces)

        def before_request(method: str) -> None:
            time.sleep(PAUSE_SECONDS)
            call.before_request(method)

        def run() -> T:
            with contextlib.closing(Store.from_variables(variables, REQUEST_LIMITS)) as store:
                store.require_credentials()
                store.watch_requests(before_request, call.after_response, call.on_data)
                return work(Sweep(store, source, self._root, namespaces, LIMIT))

        try:
            async with asyncio.timeout(SWEEP_SECONDS):
                return await asyncio.to_thread(run)
        finally:
            call.end()


class OperatorSource(ClusterSource):
    """`ClusterSource` for the thread of a sweep. Sends requests through the operator's client and event loop."""

    def __init__(self, cluster: AsyncKubeClient, loop: asyncio.AbstractEventLoop, call: StoreCall) -> None:
        """`call` is the sweep's store call. Once it has ended, no more requests are sent."""
        self._cluster = cluster
        self._loop = loop
        self._call = call

    @override
    def find(self, kind: ResourceKind, namespace: str | None, name: str) -> Obj | None:
        return self._wait(self._cluster.get(kind, namespace, name))

    @override
    def read(
        self,
        kind: ResourceKind,
        convert: Callable[[Obj], T],
        namespace: str | None = None,
        labels: Labels | None = None,
    ) -> list[T]:
        if kind == SECRET:
            raise ApiError(
                403,
                "Forbidden",
                "the operator is not allowed to list Secrets; `rlrun gc` finds the Secrets of deleted runs",
            )

        async def convert_pages() -> list[T]:
            pages = self._cluster.all_pages(kind, namespace, labels)
            return [convert(item) async for page, _ in pages for item in page]

        return self._wait(convert_pages())

    @override
    def delete(self, item: GarbageItem) -> None:
        self._wait(self._cluster.delete(ALL[item.kind], item.namespace, item.name))

    def _wait(self, request: Coroutine[Any, Any, T]) -> T:
        """Return the result of a request. Raises ApiError, LeaseLost or, after the end of the sweep, CallEnded."""
        try:
            self._call.before_request("GET")
            future = asyncio.run_coroutine_threadsafe(request, self._loop)
        except RuntimeError as error:
            request.close()
            raise CallEnded("the event loop is closed") from error
        except (CallEnded, LeaseLost):
            request.close()
            raise
        while True:
            try:
                return future.result(1.0)
            except CancelledError as error:
                raise CallEnded("the operator is shutting down") from error
            except TimeoutError:
                if future.done():
                    return future.result()
                try:
                    self._call.before_request("GET")
                except (CallEnded, LeaseLost):
                    future.cancel()
                    raise
