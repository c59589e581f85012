"""Copies of the logs of pods to S3, before the pods are deleted: best effort, within a time limit."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.service.tenant_quota import QuotaResult, TenantQuota

from rlrun_operator.planning.actions import LogCopy
from rlrun_operator.storage.artifact_store import ArtifactStore

log = logging.getLogger(__name__)

LIMIT_BYTES = 5 * 1024**2
"""Maximum size of a copy in bytes. Longer logs are truncated at the beginning."""
COLLECT_SECONDS = 30.0
"""Time limit of one call of `collect`; unfinished copies are cancelled."""
CONCURRENT_LOGS = 8
"""Maximum number of concurrent copies, because logs are held in memory."""


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
        """Copy the logs. Returns the copies that are done, including those of containers without a log. Failures are
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
                "%s: %s logs of %s were not copied within %.0f s and are lost",
                namespace,
                len(unfinished),
                copies[0].pod,
                self._seconds,
            )
        return [copy for task, copy in tasks.items() if task in done and task.result()]

    async def settle(self, root: str) -> None:
        """Wait until all copies below a URI have ended."""
        for uri, lock in list(self._locks.items()):
            if uri.startswith(f"{root}/"):
                async with lock:
                    pass

    @asynccontextmanager
    async def _slot(self, namespace: str) -> AsyncIterator[None]:
        """Hold one of CONCURRENT_LOGS slots. A namespace may hold as many slots as remain free for others."""
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
