"""Events of the API server, through kopf's own watchers and the operator's handlers, to the status of a run.

kopf's lists and watches, and the transport of the operator's client, are those of a cluster in memory. Only the process
around kopf's watchers is left out: it looks for kinds, handles signals, and cancels all tasks at its end.
"""

import asyncio
import contextlib
import functools
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Collection
from typing import Any
from urllib.parse import urlsplit

import kopf
import pytest
from kopf._cogs.clients import api, fetching
from kopf._cogs.structs.references import Resource
from kopf._core.actions import lifecycles
from kopf._core.engines import indexing
from kopf._core.reactor import inventory, processing, queueing
from kubernetes.aio import client
from rlrun.constants import RUN_LABEL
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.kinds import ALL, JOB, POD, RLADAPTER, RLCHECKPOINT, RLMODEL
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest, Verb
from rlrun_operator import handlers
from rlrun_operator.cache.child_kinds import PODS_AND_CHILDREN
from rlrun_operator.controller.reconciler import Reconciler
from rlrun_operator.operator_process import Operator
from rlrun_operator.planning.plan.observation import RunKey
from rlrun_operator.runtime.work_queue import work

from tests.support.cluster_objects import model_object, run_object, source_secret
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubelet import step_kubelet
from tests.support.operator_world import SETTINGS, World
from tests.support.waiting import SECONDS, until
from tests.support.walks import RECONCILE, CallRecorder, deviations, read_walk

KEY = RunKey("team", "reverse")
WATCHED = (*handlers.WATCHED, *PODS_AND_CHILDREN)
KINDS = {kind.plural: kind for kind in ALL.values()}


class WatchedCluster(FakeCluster):
    """API server in memory with watches: each change that a test announces is an event."""

    def __init__(self, *objects: Obj) -> None:
        super().__init__(*objects)
        self._changes: dict[str, asyncio.Queue[Obj]] = defaultdict(asyncio.Queue)

    def announce(self, event: str, obj: Obj) -> None:
        """Send an event to the watch of the object's kind."""
        self._changes[ALL[obj["kind"]].plural].put_nowait({"type": event, "object": obj})

    async def watch_events(self, plural: str) -> AsyncIterator[Obj]:
        """Yield the events of a kind as they are announced."""
        while True:
            yield await self._changes[plural].get()

    @contextlib.asynccontextmanager
    async def stream(self, request: KubeRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        """Answer the requests of the operator's own watches."""
        assert request.verb is Verb.WATCH

        async def lines() -> AsyncIterator[bytes]:
            async for event in self.watch_events(request.kind.plural):
                yield json.dumps(event).encode() + b"\n"

        yield lines()


class Pools:
    """Serving pools, which do not matter here."""

    def on_change(self, obj: object) -> None: ...

    def queue_all(self, namespace: str | None = None) -> None: ...


class Watches:
    """The watches of an operator that leads."""

    def __init__(self, operator: Operator, cluster: WatchedCluster, reconciler: Reconciler) -> None:
        self._operator = operator
        self._cluster = cluster
        self._reconciler = reconciler
        self._tasks: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> "Watches":
        operator, reconciler = self._operator, self._reconciler
        registry = handlers.registry(
            self._configure,
            operator._queue.add,
            operator._enqueue_pending,
            functools.partial(operator._enqueue_warm_starts, reconciler),
            Pools(),
            operator._cache,
        )
        on_listed = functools.partial(operator._enqueue_changed, Pools(), reconciler)
        enqueue, stop, started = operator._queue.add, asyncio.Event(), asyncio.Event()
        watching = handlers.watch(registry, [], operator._cache, operator._new_runs, enqueue, on_listed, stop, started)
        jobs = operator._cache_jobs(AsyncKubeClient(self._cluster), Pools(), reconciler)
        self._tasks = [asyncio.create_task(job) for job in (watching, *jobs)]
        await until(lambda: all(operator._cache.is_watched(kind, None) for kind in WATCHED) or self._has_failed)
        assert not self._has_failed, self._tasks
        return self

    @property
    def _has_failed(self) -> bool:
        return any(task.done() for task in self._tasks)

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _configure(self) -> client.Configuration:
        return client.Configuration()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> WatchedCluster:
    """An empty cluster that kopf lists and watches."""
    cluster = WatchedCluster()

    async def fetch_objs(*, resource: Resource, **_: Any) -> AsyncIterator[tuple[Collection[Obj], str]]:
        yield cluster.all(KINDS[resource.plural].kind), "1"

    async def stream(*, url: str, **_: Any) -> AsyncIterator[Obj]:
        async for event in cluster.watch_events(urlsplit(url).path.rpartition("/")[2]):
            yield event

    async def run_watchers(*, registry: kopf.OperatorRegistry, ready_flag: asyncio.Event, **_: Any) -> None:
        settings = kopf.OperatorSettings()
        handlers.configure_kopf(settings)
        processor = functools.partial(
            processing.process_resource_event,
            lifecycle=lifecycles.all_at_once,
            registry=registry,
            settings=settings,
            indexers=indexing.OperatorIndexers(),
            memories=inventory.ResourceMemories(),
            memobase=kopf.Memo(),
            event_queue=asyncio.Queue(),
        )
        async with asyncio.TaskGroup() as watchers:
            for kind in handlers.WATCHED:
                resource = Resource(kind.group, kind.version, kind.plural, kind=kind.kind, namespaced=kind.namespaced)
                of_kind = functools.partial(processor, resource=resource)
                watchers.create_task(
                    queueing.watcher(namespace=None, settings=settings, resource=resource, processor=of_kind)
                )
            ready_flag.set()

    monkeypatch.setattr(fetching, "fetch_objs", fetch_objs)
    monkeypatch.setattr(api, "stream", stream)
    monkeypatch.setattr(kopf, "operator", run_watchers)
    return cluster


def labelled(kind: str, **spec: Any) -> Obj:
    """Return an object of the run."""
    metadata = {"namespace": "team", "name": "of-the-run", "uid": "u", "resourceVersion": "7"}
    return {"kind": kind, "metadata": {**metadata, "labels": {RUN_LABEL: KEY.name}}, "spec": spec}


@pytest.mark.parametrize(
    ("event", "obj"),
    [
        ("ADDED", run_object()),
        ("MODIFIED", run_object()),
        ("DELETED", run_object()),
        ("ADDED", labelled(RLCHECKPOINT.kind)),
        ("MODIFIED", labelled(RLADAPTER.kind)),
        ("ADDED", model_object()),
        ("MODIFIED", labelled(POD.kind)),
        ("DELETED", labelled(JOB.kind)),
    ],
    ids=lambda value: value if isinstance(value, str) else value["kind"],
)
async def test_an_event_puts_the_key_of_its_run_into_the_queue(cluster: WatchedCluster, event: str, obj: Obj) -> None:
    operator = Operator(SETTINGS)
    async with Watches(operator, cluster, World(cluster).reconciler()):
        if obj["kind"] == RLMODEL.kind:
            # It concerns the pending runs.
            operator._phases.set_phase(KEY.namespace, KEY.name, "Pending")
        assert len(operator._queue) == 0
        cluster.announce(event, obj)
        async with asyncio.timeout(SECONDS):
            assert await operator._queue.get() == KEY


async def test_the_reconcile_of_a_new_run_takes_the_steps_of_the_walk(cluster: WatchedCluster) -> None:
    operator, world = Operator(SETTINGS), World(cluster)
    reconciler = world.reconciler()
    async with Watches(operator, cluster, reconciler):
        for obj in (model_object(), source_secret(), run_object()):
            cluster.put(obj)
        with CallRecorder() as calls:
            cluster.announce("ADDED", world.run)
            await until(lambda: len(operator._queue) == 1)
            worker = asyncio.create_task(work(operator._queue, reconciler.reconcile))
            await until(lambda: bool(cluster.all("Job")) and "phase" in world.status)
            worker.cancel()
            await asyncio.wait([worker])
            assert len(operator._queue) == 0
            step_kubelet(cluster)
            cluster.announce("ADDED", cluster.all(POD.kind)[0])
            await until(lambda: len(operator._queue) == 1)
    assert deviations(read_walk(RECONCILE), calls) == []
