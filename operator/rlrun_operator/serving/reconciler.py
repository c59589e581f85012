"""The loop of the pools: which there are, and one look, one plan, one round of acts for each."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any

from rlrun.api.adapter import DeploymentState
from rlrun.constants import MODEL_ANNOTATION, SERVING_LABEL, Reason
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import DEPLOYMENT, RLADAPTER, SERVICE_ACCOUNT
from rlrun.kube.objects import annotation
from rlrun.protocol.problem import Problem

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.runtime.work_queue import WorkQueue, work
from rlrun_operator.serving.applier import PoolApplier
from rlrun_operator.serving.deployment_state import state_of
from rlrun_operator.serving.observation import PoolKey
from rlrun_operator.serving.observer import Credentials, PoolObserver
from rlrun_operator.serving.planner import plan_pool, refuse
from rlrun_operator.serving.sidecar_client import HttpSidecars, Sidecars

log = logging.getLogger(__name__)

WORKERS = 2
RETRY_SECONDS = 5.0


class PoolReconciler:
    """Reconciles one pool at a time per worker."""

    def __init__(
        self,
        observer: PoolObserver,
        applier: PoolApplier,
        settings: OperatorSettings,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._observer = observer
        self._applier = applier
        self._settings = settings
        self._clock = clock

    async def reconcile(self, key: PoolKey) -> float | None:
        """One round. Returns when to look again, in seconds; None: when something happens."""
        seen = await self._observer.observe(key)
        plan = plan_pool(seen, self._settings, self._clock())
        try:
            await self._applier.apply(key, plan)
        except ApiError as error:
            if error.status in (400, 403, 422):
                # A quota or an admission rule: only people can do something about it.
                problem = Problem(
                    reason=Reason.POOL_REFUSED, message=f"the API server refuses an object of the pool: {error.message}"
                )
                await self._applier.tell(refuse(seen, problem, self._clock()))
            raise
        return plan.requeue_after


class ServingController:
    """Queue, workers and resync of the pools."""

    def __init__(self, cluster: AsyncKubeClient, credentials: Credentials, settings: OperatorSettings) -> None:
        sidecars = HttpSidecars(settings.serving_url_template)
        self._cluster = cluster
        self._settings = settings
        self._sidecars = sidecars
        self._reconciler = reconciler(cluster, credentials, sidecars, settings)
        self._queue: WorkQueue[PoolKey] = WorkQueue()
        self._known: set[PoolKey] = set()

    def see(self, obj: Mapping[str, Any]) -> None:
        """An RLAdapter or an object of a pool has changed."""
        key = key_of(obj)
        if key is not None:
            self._known.add(key)
            self._queue.add(key)

    def see_models(self) -> None:
        """The catalogue has changed."""
        for key in self._known:
            self._queue.add(key)

    def jobs(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run while this process leads, for ever."""
        return [self._resync(), *(work(self._queue, self._reconciler.reconcile) for _ in range(WORKERS))]

    async def close(self) -> None:
        """Drops timers and connections."""
        self._queue.close()
        await self._sidecars.close()

    async def _resync(self) -> None:
        """An authoritative list of all pools, now and again: what a watch missed is found here."""
        while True:
            try:
                self._known = await find_pools(self._cluster, self._settings.watch_namespaces)
            except ApiError as error:
                log.warning("resync of the pools: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self.see_models()
            await asyncio.sleep(self._settings.resync_seconds)


def reconciler(
    cluster: AsyncKubeClient,
    credentials: Credentials,
    sidecars: Sidecars,
    settings: OperatorSettings,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> PoolReconciler:
    """A reconciler with its parts."""
    observer = PoolObserver(cluster, credentials, sidecars, settings)
    return PoolReconciler(observer, PoolApplier(cluster, sidecars), settings, clock)


async def find_pools(cluster: AsyncKubeClient, watch_namespaces: list[str]) -> set[PoolKey]:
    """Pools that are, and pools that should be. Raises ApiError."""
    namespaces: list[str | None] = [*watch_namespaces] or [None]
    found: set[PoolKey | None] = set()
    for namespace in namespaces:
        for obj in await cluster.list(RLADAPTER, namespace):
            found.add(key_of(obj))
        # The first object that a pool gets, and so the one that is there if an operator died in between.
        for kind in (SERVICE_ACCOUNT, DEPLOYMENT):
            for obj in await cluster.list(kind, namespace, {SERVING_LABEL: ""}):
                found.add(key_of(obj))
    return {key for key in found if key is not None}


def key_of(obj: Mapping[str, Any]) -> PoolKey | None:
    """The pool that an RLAdapter or a pool's object is about; None for an adapter that nobody ever deployed."""
    namespace = obj.get("metadata", {}).get("namespace")
    if obj.get("kind") != "RLAdapter":
        model = annotation(obj, MODEL_ANNOTATION)
    elif obj["spec"].get("deployed") or state_of(dict(obj)) is not DeploymentState.not_deployed:
        model = str(obj.get("spec", {}).get("model", ""))
    else:
        return None
    return PoolKey(namespace, model) if namespace and model else None
