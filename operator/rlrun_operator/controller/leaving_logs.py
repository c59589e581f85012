"""Copies of the logs of pods that are being deleted, begun at the event that tells of it.

A pod that others delete may be gone a second later, with its logs: sooner than a reconcile that waits for the run's
orchestrator or for S3. Its logs are copied when it begins to leave, and again when its containers have ended, if they
are seen in time.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable

from rlrun.constants import RUN_LABEL, RUN_UID_LABEL
from rlrun.kube.errors import ApiError
from rlrun.kube.informer import CachedObject
from rlrun.kube.kinds import RLRUN
from rlrun.kube.pods import is_leaving
from rlrun.protocol.problem import Problem
from rlrun.service.shares import Room, Shares

from rlrun_operator.cluster.informers import CachedRun, Informers
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.controller.log_collector import LogCollector
from rlrun_operator.planning.plan.actions import LogCopy
from rlrun_operator.planning.policies.ending.log_copies import leaving_logs
from rlrun_operator.resources.platform import run_layout

log = logging.getLogger(__name__)

LEAVING = b'"deletionTimestamp"'
PODS = 1000
"""Maximum number of pods whose logs are copied at a time. A namespace has no more than stay free for the others."""


class LeavingLogs:
    """Copier of the logs of pods that are being deleted. Not thread-safe: use it from one event loop only."""

    def __init__(
        self,
        logs: LogCollector,
        informers: Informers,
        variables: Callable[[], Awaitable[dict[str, str] | Problem]],
        settings: OperatorSettings,
    ) -> None:
        """`variables` returns the AWS_* variables of the operator's S3 client, or the reason why there are none."""
        self._logs = logs
        self._informers = informers
        self._variables = variables
        self._settings = settings
        self._shares = Shares(PODS, PODS)
        self._newest: dict[str, asyncio.Task[None]] = {}
        """Newest copies of each pod, by its uid."""

    def on_change(self, cached: CachedObject) -> None:
        """Begin the copies of a pod of a run. A container is copied once while it runs and once when it has ended."""
        uid = dict(cached.labels).get(RUN_UID_LABEL)
        # Most changes are those of pods that stay, which are not decoded for this.
        if uid is None or cached.data is None or LEAVING not in cached.data or self._deletes_files(cached, uid):
            return
        layout = run_layout(self._settings, cached.namespace, uid)
        copies = [copy for copy in leaving_logs(layout, cached.read()) if not self._logs.is_begun(copy)]
        if not copies:
            return
        if self._shares.take(cached.namespace) is not Room.free:
            log.warning("Too many pods end at a time: the logs of %s/%s are lost", cached.namespace, cached.name)
            return
        task = asyncio.create_task(self._copy(cached.namespace, copies, self._newest.get(cached.uid)))
        self._newest[cached.uid] = task
        task.add_done_callback(functools.partial(self._on_done, cached))

    async def close(self) -> None:
        """Cancel the copies."""
        tasks = list(self._newest.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_done(self, cached: CachedObject, task: "asyncio.Task[None]") -> None:
        self._shares.release(cached.namespace)
        if self._newest.get(cached.uid) is task:
            del self._newest[cached.uid]

    def _deletes_files(self, pod: CachedObject, uid: str) -> bool:
        """Return whether the run is being deleted and still exists: then its files are deleted after its pods."""
        informer = self._informers.find(RLRUN, pod.namespace)
        run = None if informer is None else informer.find(pod.namespace, dict(pod.labels).get(RUN_LABEL, ""))
        return isinstance(run, CachedRun) and run.uid == uid and is_leaving(run.read_listed())

    async def _copy(self, namespace: str, copies: list[LogCopy], earlier: "asyncio.Task[None] | None") -> None:
        if earlier is not None:
            # It writes the same files.
            await asyncio.gather(earlier, return_exceptions=True)
        try:
            variables = await self._variables()
        except ApiError as error:
            log.warning("Could not copy the logs of %s/%s: %s", namespace, copies[0].pod, error)
            return
        await self._logs.collect(namespace, {} if isinstance(variables, Problem) else variables, copies)
