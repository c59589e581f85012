"""Events of the API server, through the operator's informers, to the status of a run."""

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from kubernetes.aio import client
from rlrun.constants import FIELD_MANAGER, MANAGED_BY_LABEL, RUN_LABEL
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.kinds import ALL, JOB, POD, RLADAPTER, RLCHECKPOINT, RLMODEL
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest, Verb
from rlrun_operator import handlers
from rlrun_operator.cluster.informers import FOLLOWED, OWN_KINDS, Informers
from rlrun_operator.cluster.runs import RunObjects
from rlrun_operator.controller.applier import Applier
from rlrun_operator.controller.observer import Observer
from rlrun_operator.controller.reconciler import Reconciler
from rlrun_operator.handlers import Handlers
from rlrun_operator.operator_process import Operator
from rlrun_operator.planning.observation import RunKey
from rlrun_operator.runtime.work_queue import work
from rlrun_operator.serving.reconciler import ServingController

from tests.support.clocks import Clock
from tests.support.cluster_objects import STORAGE_KEY, model_object, run_object, source_secret
from tests.support.fake_artifacts import FakeArtifacts
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubelet import step_kubelet
from tests.support.fake_poller import FakePoller
from tests.support.operator_world import SETTINGS
from tests.support.waiting import SECONDS, until

KEY = RunKey("team", "reverse")


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
        """Answer the watches of informers."""
        assert request.verb is Verb.WATCH

        async def lines() -> AsyncIterator[bytes]:
            async for event in self.watch_events(request.kind.plural):
                yield json.dumps(event).encode() + b"\n"

        yield lines()


async def no_credentials() -> client.Configuration:
    """Return nothing that connects: no test here reaches an API server."""
    return client.Configuration()


class Pools:
    """Serving pools, which do not matter here."""

    def on_change(self, obj: object) -> None: ...

    def queue_all(self) -> None: ...


class Watches:
    """The watches of an operator that leads, and its reconciler."""

    def __init__(self, cluster: WatchedCluster) -> None:
        self.operator = Operator(SETTINGS)
        self.informers = Informers(AsyncKubeClient(cluster), FOLLOWED)
        objects = RunObjects(cluster, self.informers)
        observer = Observer(objects, FakeArtifacts(), FakePoller(), SETTINGS, storage_key=STORAGE_KEY)
        self.reconciler = Reconciler(observer, Applier(objects.cluster, FakeArtifacts()), SETTINGS, Clock())
        reactions = Handlers(self.informers, self.operator._queue, cast(ServingController, Pools()))
        self.informers.listeners.append(reactions.on_change)
        self._cluster = cluster
        self._tasks: list[asyncio.Task[Any]] = []

    async def _call_handler(self, handler: Any) -> None:
        """Do kopf's part: pass all objects of a kind and then its events to the handler of the kind."""
        kind = next(kind for kind in OWN_KINDS if kind.plural == handler.id)
        for obj in self._cluster.all(kind.kind):
            await handler.fn(event={"type": None, "object": obj})
        async for event in self._cluster.watch_events(kind.plural):
            await handler.fn(event=event)

    async def __aenter__(self) -> "Watches":
        registry = handlers.registry(no_credentials, self.informers.receive, lambda: None, lambda: None)
        jobs = [self._call_handler(handler) for handler in registry._watching.get_all_handlers()]
        self._tasks = [asyncio.create_task(job) for job in (*jobs, *self.informers.jobs(lambda: None))]
        async with asyncio.timeout(SECONDS):
            await self.informers.until_synced()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


@pytest.fixture
def cluster() -> WatchedCluster:
    """An empty cluster."""
    return WatchedCluster()


def labelled(kind: str, **spec: Any) -> Obj:
    """Return an object of the run."""
    metadata = {"namespace": "team", "name": "of-the-run", "uid": "u", "resourceVersion": "7"}
    return {
        "kind": kind,
        "metadata": {**metadata, "labels": {RUN_LABEL: KEY.name, MANAGED_BY_LABEL: FIELD_MANAGER}},
        "spec": spec,
    }


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
    if obj["kind"] == RLMODEL.kind:
        # It concerns the pending runs.
        cluster.put(run_object() | {"status": {"phase": "Pending"}})
    elif event == "DELETED":
        cluster.put(obj)
    async with Watches(cluster) as watches:
        queue = watches.operator._queue
        assert len(queue) == 0
        newest = {**obj["metadata"], "resourceVersion": "900"}
        cluster.announce(event, {**obj, "metadata": newest})
        async with asyncio.timeout(SECONDS):
            assert await queue.get() == KEY


async def test_the_event_of_a_new_run_leads_to_its_children_and_that_of_a_pod_back_to_it(
    cluster: WatchedCluster,
) -> None:
    async with Watches(cluster) as watches:
        queue = watches.operator._queue
        for obj in (model_object(), source_secret(), run_object()):
            cluster.put(obj)
        cluster.announce("ADDED", cluster.objects["RLRun", "team", "reverse"])
        await until(lambda: len(queue) == 1)
        worker = asyncio.create_task(work(queue, watches.reconciler.reconcile))
        await until(lambda: bool(cluster.all("Job")) and "status" in cluster.objects["RLRun", "team", "reverse"])
        worker.cancel()
        await asyncio.wait([worker])
        assert len(queue) == 0, "the operator's own writes are no news"
        step_kubelet(cluster)
        cluster.announce("ADDED", cluster.all(POD.kind)[0])
        await until(lambda: len(queue) == 1)
