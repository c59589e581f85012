"""Copies of the logs of pods to S3, before the pods are deleted: best effort, within a time limit."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.service.shares import Room, Shares

from rlrun_operator.planning.plan.actions import LogCopy
from rlrun_operator.storage.artifact_store import ArtifactStore

log = logging.getLogger(__name__)

LIMIT_BYTES = 5 * 1024**2
"""Size limit of a copy; it has the end of the log."""
COLLECT_SECONDS = 30.0
"""Time limit for all logs of a run; unfinished copies are cancelled."""
CONCURRENT_LOGS = 4
"""Concurrent copies of all runs, limited because logs are held in memory."""
REMEMBERED_COPIES = 10_000
"""Number of copies that `is_begun` knows: 4 MB."""


class LogCollector:
    """Copier of logs from pods to S3."""

    def __init__(self, cluster: AsyncKubeClient, artifacts: ArtifactStore, *, seconds: float = COLLECT_SECONDS) -> None:
        self._cluster = cluster
        self._artifacts = artifacts
        self._seconds = seconds
        # A namespace whose copies hang must not cost others their logs.
        self._shares = Shares(CONCURRENT_LOGS, CONCURRENT_LOGS)
        self._released = asyncio.Event()
        self._begun: dict[LogCopy, None] = {}
        """Newest copies, in the order in which they began."""

    def is_begun(self, copy: LogCopy) -> bool:
        """Return whether this process has begun to make the copy, unless that was REMEMBERED_COPIES copies ago."""
        return copy in self._begun

    async def collect(self, namespace: str, variables: Mapping[str, str], copies: Sequence[LogCopy]) -> None:
        """Copy the logs. Failures are logged, not raised."""
        if not copies or not variables:
            return
        for copy in copies:
            self._begun.pop(copy, None)
            self._begun[copy] = None
        while len(self._begun) > REMEMBERED_COPIES:
            del self._begun[next(iter(self._begun))]
        tasks = [asyncio.create_task(self._copy(namespace, variables, copy)) for copy in copies]
        try:
            _, unfinished = await asyncio.wait(tasks, timeout=self._seconds)
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

    @asynccontextmanager
    async def _slot(self, namespace: str) -> AsyncIterator[None]:
        """Hold one of CONCURRENT_LOGS slots. A namespace has no more than stay free for the others."""
        while self._shares.take(namespace) is not Room.free:
            await self._released.wait()
        try:
            yield
        finally:
            self._shares.release(namespace)
            self._released.set()
            self._released = asyncio.Event()

    async def _copy(self, namespace: str, variables: Mapping[str, str], copy: LogCopy) -> None:
        async with self._slot(namespace):
            try:
                text = await self._cluster.log(
                    namespace, copy.pod, copy.container, previous=copy.previous, limit=LIMIT_BYTES
                )
                if text:
                    await self._artifacts.put(variables, copy.uri, text)
            except Exception as error:
                # Logs are informational; a run must neither fail nor wait for one.
                log.warning("Could not copy the log of %s/%s (%s): %s", namespace, copy.pod, copy.container, error)
