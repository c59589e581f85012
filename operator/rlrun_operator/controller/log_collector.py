"""Keeping the logs of pods that go: the end of each, together, within a bounded time, and never in anybody's way."""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from rlrun.kube.async_client import AsyncKubeClient

from rlrun_operator.controller.artifact_store import Artifacts
from rlrun_operator.planning.plan.actions import LogCopy

log = logging.getLogger(__name__)

LIMIT_BYTES = 5 * 1024**2
"""Of each log, its end."""
KEEP_SECONDS = 30.0
"""For all logs of a run together; those that are not there by then are lost."""
AT_A_TIME = 4
"""Logs that are read or written at the same time, of all runs: they are in memory."""


class LogKeeper:
    """Copies logs from pods to S3."""

    def __init__(self, cluster: AsyncKubeClient, artifacts: Artifacts, *, seconds: float = KEEP_SECONDS) -> None:
        self._cluster = cluster
        self._artifacts = artifacts
        self._seconds = seconds
        self._turns = asyncio.Semaphore(AT_A_TIME)

    async def keep(self, namespace: str, variables: Mapping[str, str], copies: Sequence[LogCopy]) -> None:
        """Does what it can; never raises for what it cannot."""
        if not copies or not variables:
            return
        tasks = [asyncio.create_task(self._keep(namespace, variables, copy)) for copy in copies]
        try:
            _, late = await asyncio.wait(tasks, timeout=self._seconds)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise
        for task in late:
            task.cancel()
        if late:
            log.warning(
                "%s: %s logs of %s were not kept within %.0f s", namespace, len(late), copies[0].pod, self._seconds
            )

    async def _keep(self, namespace: str, variables: Mapping[str, str], copy: LogCopy) -> None:
        async with self._turns:
            try:
                text = await self._cluster.log(
                    namespace, copy.pod, copy.container, previous=copy.previous, limit=LIMIT_BYTES
                )
                if text:
                    await self._artifacts.put(variables, copy.uri, text)
            except Exception as error:
                # A log is for people; no run may fail, or wait, for one.
                log.warning("log of %s/%s (%s) is not kept: %s", namespace, copy.pod, copy.container, error)
