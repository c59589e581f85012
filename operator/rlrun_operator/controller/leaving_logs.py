"""Copies of the logs of pods that are being deleted, begun at the event that tells of it.

A pod that others delete may be gone a second later, with its logs: sooner than a reconcile that waits for the run's
orchestrator or for S3. Its logs are copied when it begins to leave, and again when its containers have ended, if they
are seen in time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from rlrun.api.run_sections.retention import ArtifactPolicy
from rlrun.constants import RUN_LABEL, RUN_UID_LABEL
from rlrun.kube.errors import ApiError
from rlrun.kube.informer import CachedObject, ObjectChange
from rlrun.kube.kinds import POD, RLRUN, ResourceKind
from rlrun.kube.pods import is_leaving, is_node_silent
from rlrun.protocol.problem import Problem
from rlrun.service.shares import Room, Shares

from rlrun_operator.cluster.informers import CachedPod, CachedRun, Informers
from rlrun_operator.cluster.tenants import TenancyProblem, no_problem
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.controller.log_collector import LogCollector
from rlrun_operator.planning.policies.ending.log_copies import pod_logs
from rlrun_operator.resources.platform import run_layout

log = logging.getLogger(__name__)

PODS = 1000
"""Maximum number of pods whose logs are copied at a time. A namespace has no more than stay free for the others."""
LOADS = 4
"""Pods that are not stored whole and are read at a time."""


@dataclass
class _LeavingPod:
    newest: CachedPod | None = None
    """Its state, until the logs in that state are copied."""
    is_followed: bool = False
    copied: set[tuple[str, bool]] = field(default_factory=set)
    """Containers, and whether they had ended."""


class LeavingLogs:
    """Copier of the logs of pods that are being deleted. Not thread-safe: use it from one event loop only."""

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
        self._shares = Shares(PODS, PODS)
        self._loads = asyncio.Semaphore(LOADS)
        self._pods: dict[str, _LeavingPod] = {}
        """Pods that are being deleted, by uid."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def begin(self, pods: Iterable[CachedObject]) -> None:
        """Begin the copies of the pods that were leaving before the first event."""
        for pod in pods:
            self.on_change(POD, ObjectChange(pod))

    def on_change(self, _: ResourceKind, change: ObjectChange[CachedObject]) -> None:
        """Begin the copies of a pod of a run. A container is copied once while it runs and once when it has ended.

        It is a listener of informers.
        """
        cached = change.cached
        if not isinstance(cached, CachedPod) or not cached.is_leaving or not _run_uid(cached) or self._closed:
            return
        if self._tenancy_problem(cached.namespace) is not None:
            return
        if change.is_deleted:
            self._pods.pop(cached.uid, None)
            return
        is_new = cached.uid not in self._pods
        pod = self._pods.setdefault(cached.uid, _LeavingPod())
        pod.newest = cached
        if pod.is_followed:
            return
        if self._shares.take(cached.namespace) is not Room.free:
            if is_new:
                name = f"{cached.namespace}/{cached.name}"
                log.warning("Too many pods end at a time: the logs of %s may be copied at its next event", name)
            return
        pod.is_followed = True
        task = asyncio.create_task(self._follow(cached.namespace, pod))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel the copies, and begin no others."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, namespace: str, pod: _LeavingPod) -> None:
        try:
            while pod.newest is not None:
                cached, pod.newest = pod.newest, None
                try:
                    await self._copy(cached, pod)
                except ApiError as error:
                    log.warning("Could not copy the logs of %s/%s: %s", namespace, cached.name, error)
        finally:
            pod.is_followed = False
            self._shares.release(namespace)

    async def _copy(self, cached: CachedPod, pod: _LeavingPod) -> None:
        informer = self._informers.find(POD, cached.namespace)
        whole: CachedObject | None = cached
        if cached.data is None and informer is not None:
            async with self._loads:
                whole = await informer.load(cached)
        if whole is None or whole.data is None or self._deletes_files(cached):
            return
        obj = whole.read()
        if is_node_silent(obj):
            # It would not answer. If it reports again, that is an event.
            return
        layout = run_layout(self._settings, cached.namespace, _run_uid(cached))
        copies = [c for c in pod_logs(layout, [obj]) if (c.container, c.is_complete) not in pod.copied]
        variables = await self._variables() if copies else {}
        if not isinstance(variables, Problem):
            made = await self._logs.collect(cached.namespace, variables, copies)
            pod.copied.update((copy.container, copy.is_complete) for copy in made)

    def _deletes_files(self, pod: CachedPod) -> bool:
        """Return whether the run is being deleted with its files, which are deleted after its pods."""
        informer = self._informers.find(RLRUN, pod.namespace)
        run = None if informer is None else informer.find(pod.namespace, dict(pod.labels).get(RUN_LABEL, ""))
        if not isinstance(run, CachedRun) or run.uid != _run_uid(pod) or not is_leaving(run.read_listed()):
            return False
        return run.data is None or run.read()["spec"].get("artifactPolicy") == ArtifactPolicy.delete


def _run_uid(pod: CachedPod) -> str:
    return dict(pod.labels).get(RUN_UID_LABEL, "")
