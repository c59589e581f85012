"""Copies pod logs to S3 before the pods are deleted, within a time limit and on a best-effort basis.

The last container of a pod to end is a sidecar, the log hold (`rlrun.service.containers.log_hold`). It waits up to
LOG_HOLD_SECONDS until the operator has copied the logs of the other containers. A finalizer on the pod could not keep
its logs, because the kubelet removes the containers of a deleted pod within a second after the last one has ended.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from weakref import WeakValueDictionary

from rlrun.api.run_sections.retention import ArtifactPolicy
from rlrun.constants import LOG_HOLD_PORT, LOG_HOLD_SECONDS, RUN_LABEL, RUN_UID_LABEL
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.informer import CachedObject, ObjectChange
from rlrun.kube.kinds import POD, RLRUN, ResourceKind
from rlrun.kube.pods import Pod, is_leaving
from rlrun.protocol.problem import Problem
from rlrun.service.containers.log_hold import ENDED, KEPT
from rlrun.service.tenant_quota import QuotaResult, TenantQuota

from rlrun_operator.cluster.informers import CachedPod, CachedRun, Informers
from rlrun_operator.cluster.tenants import TenancyProblem, no_problem
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.actions import LogCopy
from rlrun_operator.planning.ending import all_logs
from rlrun_operator.resources.platform import run_layout
from rlrun_operator.storage.artifact_store import ArtifactStore

log = logging.getLogger(__name__)

LIMIT_BYTES = 5 * 1024**2
"""Maximum size of a copy in bytes. The beginning of a longer log is left out."""
COLLECT_SECONDS = 30.0
"""Time limit of one call of `collect`; unfinished copies are cancelled."""
CONCURRENT_LOGS = 8
"""Maximum number of concurrent copies, because logs are held in memory."""
PODS = 1000
"""Maximum number of pods whose logs are copied concurrently. A namespace may start another copy only if more slots are
free than the namespace uses.
"""
LOADS = 4
"""Maximum number of concurrent reads of pods that are not stored in full."""
CONNECT_SECONDS = 5.0
"""Seconds within which a log hold must accept a connection."""
RETRY_SECONDS = 1.0
"""Seconds between two attempts to connect to a log hold, or to copy the logs that it keeps."""


class LogCollector:
    """Copies logs from pods to S3."""

    def __init__(self, cluster: AsyncKubeClient, artifacts: ArtifactStore, *, seconds: float = COLLECT_SECONDS) -> None:
        self._cluster = cluster
        self._artifacts = artifacts
        self._seconds = seconds
        # A namespace whose copies hang must not block the copies of other namespaces.
        self._quota = TenantQuota(CONCURRENT_LOGS, CONCURRENT_LOGS)
        self._released = asyncio.Event()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks by URI of the file being written, so that a late copy does not replace a newer one."""

    async def collect(
        self, namespace: str, variables: Mapping[str, str], copies: Sequence[LogCopy]
    ) -> Sequence[LogCopy]:
        """Copy the logs. Returns the completed copies, including copies for containers without a log. Failures are
        logged, not raised.
        """
        if not copies or not variables:
            return []
        tasks = {asyncio.create_task(self._copy(namespace, variables, copy)): copy for copy in copies}
        try:
            done, unfinished = await asyncio.wait(tasks, timeout=self._seconds)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise
        for task in unfinished:
            task.cancel()
        if unfinished:
            log.warning(
                "Namespace %s: logs that were not copied within %.0f s and may be lost: %s",
                namespace,
                self._seconds,
                ", ".join(f"{tasks[task].pod} ({tasks[task].container})" for task in unfinished),
            )
        return [copy for task, copy in tasks.items() if task in done and task.result()]

    async def settle(self, root: str) -> None:
        """Wait until all copies to URIs below `root` have ended."""
        for uri, lock in list(self._locks.items()):
            if uri.startswith(f"{root}/"):
                async with lock:
                    pass

    @asynccontextmanager
    async def _slot(self, namespace: str) -> AsyncIterator[None]:
        """Wait for one of CONCURRENT_LOGS slots and hold it during the block. A namespace may hold as many slots as
        remain free for others.
        """
        while self._quota.take(namespace) is not QuotaResult.granted:
            await self._released.wait()
        try:
            yield
        finally:
            self._quota.release(namespace)
            self._released.set()
            self._released = asyncio.Event()

    async def _copy(self, namespace: str, variables: Mapping[str, str], copy: LogCopy) -> bool:
        """Copy a log. Returns whether it succeeded."""
        async with self._locks.setdefault(copy.uri, asyncio.Lock()), self._slot(namespace):
            try:
                text = await self._cluster.log(
                    namespace, copy.pod, copy.container, previous=copy.previous, limit=LIMIT_BYTES
                )
                if text is None:
                    log.info(
                        "The log of %s/%s (%s) was deleted before it was copied", namespace, copy.pod, copy.container
                    )
                elif text:
                    await self._artifacts.put(variables, copy.uri, text)
            except Exception as error:
                # A run must neither fail nor wait because of a log.
                log.warning("Could not copy the log of %s/%s (%s): %s", namespace, copy.pod, copy.container, error)
                return False
            return True


class TerminatingPodLogs:
    """Copies the logs of terminating pods. Not thread-safe: use from one event loop only."""

    def __init__(
        self,
        logs: LogCollector,
        informers: Informers,
        variables: Callable[[], Awaitable[dict[str, str] | Problem]],
        settings: OperatorSettings,
        tenancy_problem: TenancyProblem = no_problem,
    ) -> None:
        """`variables` returns the AWS_* variables of the operator's S3 client, or the reason why there are none."""
        self._tenancy_problem = tenancy_problem
        self._logs = logs
        self._informers = informers
        self._variables = variables
        self._settings = settings
        self._quota = TenantQuota(PODS, PODS)
        self._loads = asyncio.Semaphore(LOADS)
        self._tasks: dict[str, asyncio.Task[bool]] = {}
        """Copies by uid of the pod. An entry is kept until the pod is deleted, or until its next event if the copy
        failed.
        """
        self._closed = False

    def begin(self, pods: Iterable[CachedObject]) -> None:
        """Start copying the logs of those `pods` that were terminating before the first event."""
        for pod in pods:
            self.on_change(POD, ObjectChange(pod))

    def on_change(self, _: ResourceKind, change: ObjectChange[CachedObject]) -> None:
        """Start copying the logs of the changed pod if it is a terminating pod of a run. The informers call this method
        after each change.
        """
        cached = change.cached
        if not isinstance(cached, CachedPod) or not cached.is_ending or not _run_uid(cached) or self._closed:
            return
        task = self._tasks.get(cached.uid)
        if change.is_deleted:
            if task is not None and task.done():
                del self._tasks[cached.uid]
            elif task is not None:
                task.add_done_callback(lambda _: self._tasks.pop(cached.uid, None))
            return
        if self._tenancy_problem(cached.namespace) is not None:
            return
        if task is not None and (not task.done() or (not task.cancelled() and task.result())):
            return
        if self._quota.take(cached.namespace) is not QuotaResult.granted:
            if task is None:
                name = f"{cached.namespace}/{cached.name}"
                log.warning("Too many pods are terminating: the logs of %s are copied at the pod's next event", name)
            return
        self._tasks[cached.uid] = asyncio.create_task(self._keep(cached))

    async def close(self) -> None:
        """Cancel the copies and start no more. The pods' log holds wait until the next operator has copied the logs, up
        to LOG_HOLD_SECONDS.
        """
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, cached: CachedPod) -> bool:
        """Copy the logs of a pod once its containers have ended. Returns False if the pod's next event must repeat the
        copy.
        """
        try:
            pod = await self._load(cached)
            # A node that does not report would not respond. When it reports again, there is an event.
            if pod is None or pod.is_node_silent:
                return False
            address = pod.log_hold_address
            if address is None:
                return await self._copy(cached, pod)
            async with _hold_open(address) as is_held:
                while not await self._copy(cached, pod):
                    if not is_held():
                        log.warning(
                            "The logs of %s/%s were not copied before its log hold ended", cached.namespace, cached.name
                        )
                        return False
                    await asyncio.sleep(RETRY_SECONDS)
            return True
        except ApiError as error:
            log.warning("Could not copy the logs of %s/%s: %s", cached.namespace, cached.name, error)
            return False
        finally:
            self._quota.release(cached.namespace)

    async def _load(self, cached: CachedPod) -> Pod | None:
        informer = self._informers.find(POD, cached.namespace)
        whole: CachedObject | None = cached
        if cached.data is None and informer is not None:
            async with self._loads:
                whole = await informer.load(cached)
        return None if whole is None or whole.data is None else Pod(whole.read())

    async def _copy(self, cached: CachedPod, pod: Pod) -> bool:
        """Copy the logs of all containers. Returns whether every log was copied, is missing or need not be copied."""
        if self._deletes_files(cached):
            return True
        copies = all_logs(run_layout(self._settings, cached.namespace, _run_uid(cached)), pod)
        try:
            variables = await self._variables()
        except ApiError as error:
            log.warning("Could not read the S3 credentials for the logs of %s: %s", cached.name, error)
            return False
        if isinstance(variables, Problem):
            return False
        return len(await self._logs.collect(cached.namespace, variables, copies)) == len(copies)

    def _deletes_files(self, pod: CachedPod) -> bool:
        """Return whether the run is being deleted together with its files."""
        informer = self._informers.find(RLRUN, pod.namespace)
        run = None if informer is None else informer.find(pod.namespace, dict(pod.labels).get(RUN_LABEL, ""))
        if not isinstance(run, CachedRun) or run.uid != _run_uid(pod) or not is_leaving(run.read_listed()):
            return False
        return run.data is None or run.read()["spec"].get("artifactPolicy") == ArtifactPolicy.delete


@asynccontextmanager
async def _hold_open(address: str) -> AsyncIterator[Callable[[], bool]]:
    """Wait until the pod's other containers have ended, keep its log hold running during the block, then let it end.

    Yields a function that returns whether the log hold still keeps the logs. If the log hold does not respond, the logs
    are not kept and the block starts immediately, with the logs written so far.
    """
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                while reader is None:
                    try:
                        reader, writer = await asyncio.open_connection(address, LOG_HOLD_PORT, limit=len(ENDED))
                    except OSError:
                        # In a pod that ends soon after its start, the process may not listen yet.
                        await asyncio.sleep(RETRY_SECONDS)
        if reader is None:
            log.warning("The log hold of the pod at %s does not respond; copying the logs immediately", address)
        else:
            with suppress(OSError):
                # The wait ends with the pod's grace period, when the connection is closed.
                await reader.read(len(ENDED))
        end = asyncio.get_running_loop().time() + LOG_HOLD_SECONDS
        yield lambda: reader is not None and not reader.at_eof() and asyncio.get_running_loop().time() < end
        if writer is not None:
            with suppress(OSError):
                writer.write(KEPT)
                await writer.drain()
    finally:
        if writer is not None:
            writer.close()


def _run_uid(pod: CachedPod) -> str:
    return dict(pod.labels).get(RUN_UID_LABEL, "")
