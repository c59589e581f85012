"""Event handlers that queue the runs and serving pools affected by a changed object.

| changed object | queued |
|---|---|
| RLRun | the run, and the shared pool that it joins or leaves |
| RLModel | all runs that have not begun, and all serving pools |
| RLCheckpoint | the run that wrote the checkpoint, and runs that wait to start from it |
| RLAdapter | the run that wrote the adapter, and the adapter's serving pool |
| ConfigMap of a run | the run, and its shared pool |
| pod, Job or another object that the operator manages | its run, its pool, and the runs of a shared pool |

kopf lists and watches the kinds of rlrun.dev. Only its event handlers are used, because its other handlers write
annotations and finalizers. Informers watch the other kinds (cluster/informers.py). Both store each object once, and the
store reports only changes: repeated events and events of the operator's own writes are ignored.
"""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, cast

import aiohttp
import kopf
from kubernetes.aio import client
from rlrun.constants import GROUP, RUN_LABEL, SERVING_LABEL
from rlrun.kube.informer import CachedObject, ObjectChange
from rlrun.kube.kinds import CONFIG_MAP, RLADAPTER, RLCHECKPOINT, RLMODEL, RLRUN, ResourceKind
from rlrun.kube.objects import Obj
from rlrun.kube.references import SHARED_POOL_PREFIX, checkpoint_id
from typing_extensions import override

from rlrun_operator.cluster.informers import OWN_KINDS, CachedRun, Informers
from rlrun_operator.planning.observation import RunKey
from rlrun_operator.runtime.kopf_session import KopfSession
from rlrun_operator.runtime.work_queue import WorkQueue
from rlrun_operator.serving.reconciler import ServingController

OBJECTS_PER_PAGE = 20
"""Number of objects per page of kopf's lists. A page is held in memory, and an object may be 1.5 MB large."""

Receive = Callable[[ResourceKind, str | None, Obj], None]


class Handlers:
    """Handlers of object changes. They only queue the affected runs and pools; reconciles read the objects from the
    store.
    """

    def __init__(self, objects: Informers, queue: WorkQueue[RunKey], pools: ServingController) -> None:
        self._objects = objects
        self._queue = queue
        self._pools = pools

    def on_change(self, kind: ResourceKind, change: ObjectChange[CachedObject]) -> None:
        """Handle a change of an object of any kind."""
        own_kinds = {
            RLRUN: self._on_run,
            RLMODEL: self._on_model,
            RLCHECKPOINT: self._on_checkpoint,
            RLADAPTER: self._on_adapter,
            CONFIG_MAP: self._on_config,
        }
        own_kinds.get(kind, self._on_child)(change)

    def _on_run(self, change: ObjectChange[CachedObject]) -> None:
        if not change.is_own:
            self._queue.add(RunKey(change.cached.namespace, change.cached.name))
        if isinstance(change.cached, CachedRun):
            # Even after own writes: an admitted run joins its shared pool.
            self._pools.on_run(change.cached, is_deleted=change.is_deleted)

    def _on_model(self, change: ObjectChange[CachedObject]) -> None:
        if change.is_own:
            return
        for run in self._objects.runs():
            if not run.has_begun:
                self._queue.add(RunKey(run.namespace, run.name))
        self._pools.queue_all()

    def _on_checkpoint(self, change: ObjectChange[CachedObject]) -> None:
        checkpoint = change.cached
        self._queue_owner(checkpoint)
        awaited = checkpoint_id(checkpoint.namespace, checkpoint.name)
        for run in self._objects.runs():
            # Only runs in these namespaces may start from the checkpoint.
            if run.checkpoint == awaited and not run.has_begun and run.namespace in readers(checkpoint):
                self._queue.add(RunKey(run.namespace, run.name))

    def _on_adapter(self, change: ObjectChange[CachedObject]) -> None:
        # Even after own writes: writes of serving pools decide which adapters retention may delete.
        self._queue_owner(change.cached)
        if change.cached.data is not None:
            self._pools.on_change(change.cached.read())

    def _on_config(self, change: ObjectChange[CachedObject]) -> None:
        self._on_child(change)
        # Even after own writes: the order of a shared pool's trainer has the run's checkpoint and a client's session.
        name, namespace = dict(change.cached.labels).get(RUN_LABEL, ""), change.cached.namespace
        runs = self._objects.find(RLRUN, namespace)
        run = None if runs is None else runs.find(namespace, name)
        if isinstance(run, CachedRun):
            self._pools.queue_pool_of(run)

    def _on_child(self, change: ObjectChange[CachedObject]) -> None:
        if change.is_own:
            return
        self._queue_owner(change.cached)
        pool = dict(change.cached.labels).get(SERVING_LABEL)
        if pool is None:
            return
        for run in self._objects.runs() if pool.startswith(SHARED_POOL_PREFIX) else ():
            if (run.namespace, run.pool) == (change.cached.namespace, pool) and not run.is_finished:
                self._queue.add(RunKey(run.namespace, run.name))
        if change.cached.data is not None:
            self._pools.on_change(change.cached.read())

    def _queue_owner(self, cached: CachedObject) -> None:
        run = dict(cached.labels).get(RUN_LABEL)
        if run:
            self._queue.add(RunKey(cached.namespace, run))


def registry(
    configure: Callable[[], Awaitable[client.Configuration]],
    receive: Receive,
    on_startup: Callable[[], None],
    on_cleanup: Callable[[], None],
) -> kopf.OperatorRegistry:
    """Return kopf's registry of handlers.

    `configure` loads credentials, and `receive` is called with each event. `on_startup` and `on_cleanup` are called
    when kopf starts and stops.
    """

    async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure_kopf(settings)
        on_startup()

    async def cleanup(**_: Any) -> None:
        on_cleanup()

    async def login(**_: Any) -> kopf.AiohttpSession:
        configuration = await configure()
        session = cast(aiohttp.ClientSession, KopfSession(configuration))
        return kopf.AiohttpSession(server=configuration.host, aiohttp_session=session)

    async def event(kind: ResourceKind, event: kopf.RawEvent, **_: Any) -> None:
        receive(kind, event["type"], dict(event["object"]))

    operator_registry = kopf.OperatorRegistry()
    kopf.on.startup(registry=operator_registry)(startup)
    kopf.on.cleanup(registry=operator_registry)(cleanup)
    kopf.on.login(registry=operator_registry)(login)
    for kind in OWN_KINDS:
        on_event = functools.partial(event, kind)
        kopf.on.event(GROUP, kind.version, kind.plural, id=kind.plural, registry=operator_registry)(on_event)
    return operator_registry


class NoDiffBase(kopf.DiffBaseStorage):  # type: ignore[misc]
    """Storage that does not keep the last state of objects. kopf would read that state from an annotation, which users
    may write.
    """

    @override
    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    @override
    def fetch(self, **_: Any) -> None:
        return None

    @override
    def store(self, **_: Any) -> None:
        return None


def configure_kopf(settings: kopf.OperatorSettings) -> None:
    """Configure kopf: no writes, no idle tasks, and limits on time and on the number of objects in memory.

    Failed requests are retried every two seconds. By default, kopf waits up to 21 s between attempts, so changes made
    during an outage of the API server would arrive up to 21 s after its end. After an outage of ten minutes, kopf stops
    and is restarted.
    """
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = (1, *[2] * 300)
    settings.persistence.finalizer = f"{GROUP}/unused"
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.watching.server_timeout = 240
    settings.watching.chunk_size = OBJECTS_PER_PAGE
    settings.watching.reconnect_backoff = 1.0
    settings.queueing.idle_timeout = 0.1
    settings.queueing.exit_timeout = 0.5
    settings.process.ultimate_exiting_timeout = None


def readers(checkpoint: CachedObject) -> set[str]:
    """Return the namespaces whose runs may start from the RLCheckpoint."""
    spec = checkpoint.read().get("spec", {}) if checkpoint.data is not None else {}
    return {checkpoint.namespace, *(spec.get("sharedWith") or ())}
