"""What the watches of children start."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any, cast

import pytest
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import ALL, DEPLOYMENT, POD, RLCHECKPOINT, RLMODEL, RLRUN, WORKLOAD, ResourceKind
from rlrun.kube.objects import Labels, Obj
from rlrun.kube.requests import KubeRequest, Verb
from rlrun_operator import operator_process
from rlrun_operator.cache import first_answers
from rlrun_operator.cache.cached_reader import CachedReader
from rlrun_operator.cache.first_answers import BY_NAME, BY_UID
from rlrun_operator.cache.object_cache import KEPT_SECONDS, ObjectCache, Question
from rlrun_operator.config.settings import KueueSettings, OperatorSettings
from rlrun_operator.controller.admission_queue import AdmissionQueue
from rlrun_operator.controller.reconciler import Reconciler
from rlrun_operator.operator_process import Operator
from rlrun_operator.planning.plan.observation import RunKey
from rlrun_operator.runtime.work_queue import Priority

from tests.support.cluster_objects import run_object
from tests.support.fake_cluster import FakeCluster
from tests.support.operator_world import SETTINGS, World


def finished(name: str) -> Obj:
    return {**run_object(name, uid=f"uid-{name}"), "status": {"phase": "Completed"}}


class Watched:
    """An API server whose watches send some events about one kind and then hang."""

    def __init__(self, *events: Obj, kind: ResourceKind = POD) -> None:
        self.events, self.kind = events, kind
        self.kinds: list[tuple[ResourceKind, str | None]] = []

    async def list_metadata(
        self, kind: ResourceKind, namespace: str | None, _: Labels, **__: Any
    ) -> tuple[list[Obj], str]:
        self.kinds.append((kind, namespace))
        return [], "1"

    async def watch_metadata(self, kind: ResourceKind, *_: Any) -> AsyncIterator[tuple[str, Obj]]:
        for event in self.events if kind == self.kind else ():
            yield "MODIFIED", event
        await asyncio.Event().wait()


class Pools:
    def __init__(self) -> None:
        self.changed: list[str] = []
        self.queued: list[str | None] = []

    def on_change(self, obj: Obj) -> None:
        self.changed.append(obj["metadata"]["name"])

    def queue_all(self, namespace: str | None = None) -> None:
        self.queued.append(namespace)


class Unsettled:
    def __init__(self, *keys: RunKey) -> None:
        self.keys = keys

    def unsettled_runs(self) -> Iterable[RunKey]:
        return self.keys


async def watch(operator: Operator, server: Watched, pools: Pools, reconciler: Unsettled) -> set[str]:
    """Open all watches. Returns the names of the runs that are looked at then."""
    jobs = operator._cache_jobs(cast(AsyncKubeClient, server), pools, cast(Reconciler, reconciler))
    tasks = [asyncio.create_task(job) for job in jobs]
    for _ in range(20):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    found = [operator._queue._take() for _ in range(len(operator._queue))]
    return {key.name for key in found if key is not None}


def operator_of(settings: OperatorSettings = SETTINGS) -> Operator:
    operator = Operator(settings)
    for name, phase in (("waits", "Pending"), ("trains", "Running"), ("done", "Completed"), ("cleans-up", "Failed")):
        operator._phases.set_phase("team", name, phase)
    return operator


async def test_when_a_watch_opens_the_runs_with_something_left_are_looked_at() -> None:
    pools = Pools()
    found = await watch(operator_of(), Watched(), pools, Unsettled(RunKey("team", "cleans-up")))
    assert found == {"waits", "trains", "cleans-up"}
    assert None in pools.queued


async def test_a_changed_deployment_of_a_pool_is_noticed_and_its_watch_concerns_no_run() -> None:
    metadata = {"name": "pool", "namespace": "team", "resourceVersion": "2", "labels": {"rlrun.dev/serving": "pool"}}
    pools, server = Pools(), Watched({"metadata": metadata}, kind=DEPLOYMENT)
    operator = operator_of()
    jobs = operator._cache_jobs(cast(AsyncKubeClient, server), pools, cast(Reconciler, Unsettled()))
    async with asyncio.timeout(20):
        watch_of_deployments = asyncio.create_task(jobs[-1])
        while not pools.changed:  # noqa: ASYNC110  # the fake has no event for it
            await asyncio.sleep(0)
    watch_of_deployments.cancel()
    for job in jobs[:-1]:
        job.close()
    assert server.kinds == [(DEPLOYMENT, None)]
    assert (pools.changed, pools.queued) == (["pool"], [None])
    assert len(operator._queue) == 0


async def test_when_a_watch_opens_again_only_runs_that_may_have_changed_are_looked_at() -> None:
    operator, pools = operator_of(), Pools()
    operator._phases.set_phase("team", "waits with pods", "Pending")
    operator._phases.set_phase("team", "trains with pods", "Running")
    operator._cache.watch_opened(POD, None, ())
    for name in ("waits with pods", "trains with pods"):
        question = Question.of_labels(POD, "team", {"rlrun.dev/run": name})
        with operator._cache.reading(question) as read:
            operator._cache.keep(question, read, [], ("team", name))
    operator._enqueue_changed(pools, cast(Reconciler, Unsettled(RunKey("team", "cleans-up"))), POD, None)
    found = {operator._queue._take() for _ in range(len(operator._queue))}
    # A pending run may wait for a model or a Secret, which is not kept.
    assert found == {RunKey("team", name) for name in ("waits", "trains", "cleans-up", "waits with pods")}
    assert pools.queued == [None]


@pytest.mark.parametrize(
    ("kind", "namespace", "expected"),
    [
        (RLMODEL, None, {"waits"}),
        (RLCHECKPOINT, "other", {"waits"}),
        (POD, "other", set()),
        (POD, "team", {"waits", "trains"}),
    ],
    ids=lambda value: getattr(value, "plural", None),
)
async def test_models_and_checkpoints_of_other_namespaces_concern_pending_runs(
    kind: ResourceKind, namespace: str | None, expected: set[str]
) -> None:
    operator = operator_of()
    operator._enqueue_changed(Pools(), cast(Reconciler, Unsettled()), kind, namespace)
    assert {operator._queue._take() for _ in range(len(operator._queue))} == {RunKey("team", n) for n in expected}


async def test_a_watch_of_a_namespace_concerns_its_runs_alone() -> None:
    operator = operator_of(SETTINGS.model_copy(update={"watch_namespaces": ["other"]}))
    operator._phases.set_phase("other", "theirs", "Running")
    server, pools = Watched(), Pools()
    assert await watch(operator, server, pools, Unsettled(RunKey("team", "cleans-up"))) == {"theirs"}
    assert set(pools.queued) == {"other"}
    assert {namespace for _, namespace in server.kinds} == {"other"}


def pod(name: str, **labels: str) -> Obj:
    metadata = {"name": name, "namespace": "team", "uid": name, "resourceVersion": "7", "labels": labels}
    return {"kind": "PartialObjectMetadata", "metadata": metadata}


async def test_a_change_of_a_child_reaches_its_run_or_its_pool() -> None:
    server = Watched(
        pod("of-a-run", **{"rlrun.dev/run": "first"}), pod("of-a-pool", **{"rlrun.dev/serving": "tiny"}), pod("of-none")
    )
    pools = Pools()
    assert await watch(Operator(SETTINGS), server, pools, Unsettled()) == {"first"}
    assert pools.changed == ["of-a-pool"]


@pytest.mark.parametrize("kueue", [None, KueueSettings()])
async def test_workloads_are_watched_only_with_kueue(kueue: KueueSettings | None) -> None:
    server = Watched()
    await watch(Operator(SETTINGS.model_copy(update={"kueue": kueue})), server, Pools(), Unsettled())
    assert ((WORKLOAD, None) in server.kinds) is (kueue is not None)


async def test_the_workers_begin_when_the_objects_of_all_unfinished_runs_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_answers, "FEWEST_RUNS", 1)
    monkeypatch.setattr(first_answers, "RUNS_PER_PAGE", 1)
    cluster, operator = FakeCluster(run_object(), finished("ended")), Operator(SETTINGS)
    for kind in ALL.values():
        operator._cache.watch_opened(kind, None, ())
    before: list[bool] = []
    send = cluster.send

    async def note(request: KubeRequest) -> Obj:
        before.append(operator._may_work.is_set())
        return await send(request)

    cluster.send = note  # type: ignore[method-assign]
    await operator._list_runs(cluster.kube)
    assert operator._may_work.is_set()
    lists = [request for request in cluster.requests if request.kind in (*BY_NAME, *BY_UID)]
    assert len(lists) == len((*BY_NAME, *BY_UID)), "one list of each kind"
    assert not any(before[: 1 + len(lists)])
    assert len(operator._cache) == len(lists), "nothing of the run that has ended"


@pytest.mark.parametrize(("has_queue", "begins"), [(False, True), (True, False)])
async def test_a_list_of_runs_that_is_refused_stops_the_workers_only_with_a_queue(
    has_queue: bool, begins: bool
) -> None:
    cluster, operator = FakeCluster(run_object()), Operator(SETTINGS)
    cluster.answers["list rlruns"] = [ApiError(403, "Forbidden", "no right")]
    admissions = AdmissionQueue(SETTINGS, operator._queue.add) if has_queue else None
    listing = asyncio.create_task(operator._resync(cluster.kube, admissions, cast(Reconciler, Unsettled())))
    for _ in range(20):
        await asyncio.sleep(0)
    assert cluster.requests
    listing.cancel()
    assert operator._may_work.is_set() is begins


async def test_the_lists_of_a_start_are_those_of_a_first_look(world: World) -> None:
    await world.start()
    world.cluster.requests.clear()
    await world.reconcile()
    asked = {request.kind for request in world.cluster.requests if "labelSelector" in request.query}
    assert asked == {*BY_NAME, *BY_UID}


async def test_the_queue_begins_with_the_places_in_the_statuses_also_after_a_list_that_failed() -> None:
    since = "2026-01-01T00:00:00Z"
    placed = {**run_object(), "status": {"phase": "Running", "queue": {"since": since, "admittedTime": since}}}
    cluster, operator = FakeCluster(placed), Operator(SETTINGS)
    admissions = AdmissionQueue(SETTINGS, operator._queue.add)
    cluster.answers["list rlruns"] = [ApiError(503, "ServiceUnavailable", "later")]
    with pytest.raises(ApiError):
        await operator._list_runs(cluster.kube, admissions)
    del cluster.answers["list rlruns"]
    await operator._list_runs(cluster.kube, admissions)
    (entry,) = admissions._entries.values()
    assert entry.admitted_time is not None


async def test_the_list_of_all_runs_queues_them_behind_events() -> None:
    cluster, operator = FakeCluster(run_object(), finished("ended")), Operator(SETTINGS)
    await operator._list_runs(cluster.kube)
    event = RunKey("team", "event")
    operator._queue.add(event)
    assert len(operator._queue) == 3
    assert await operator._queue.get() == event


async def test_the_list_of_all_runs_confirms_the_answers_about_them() -> None:
    now = 0.0
    cluster, operator = FakeCluster(run_object()), Operator(SETTINGS)
    operator._cache = ObjectCache(lambda: now, spread=lambda: 1.0)
    operator._cache.watch_opened(RLRUN, None, ())
    reader = CachedReader(cluster.kube, operator._cache, ("team", "reverse"))
    for _ in range(3):
        await reader.get(RLRUN, "team", "reverse")
        await operator._list_runs(cluster.kube)
        now += KEPT_SECONDS - 1
    assert [request.verb for request in cluster.requests if request.kind == RLRUN].count(Verb.GET) == 1


async def test_answers_about_all_that_a_look_lists_are_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def confirm(_: object, __: object, namespaces: Iterable[str], kinds: Iterable[ResourceKind]) -> None:
        confirmed.append((namespaces, {*kinds}))

    confirmed: list[tuple[Iterable[str], set[ResourceKind]]] = []
    monkeypatch.setattr(operator_process, "confirm_answers", confirm)
    settings = SETTINGS.model_copy(update={"watch_namespaces": ["one", "two"], "kueue": KueueSettings()})
    await Operator(settings)._confirmation(FakeCluster().kube)
    assert confirmed == [(["one", "two"], {*BY_NAME, *BY_UID, WORKLOAD})]


async def test_runs_of_a_watch_gap_come_after_events_and_before_the_list_of_all_runs() -> None:
    operator, missed = operator_of(), {RunKey("team", "waits"), RunKey("team", "trains")}
    listed, event = RunKey("team", "listed"), RunKey("team", "event")
    operator._queue.add(listed, Priority.RESYNC)
    operator._enqueue_changed(Pools(), cast(Reconciler, Unsettled()), POD, None)
    operator._queue.add(event)
    order = [operator._queue._take() for _ in range(4)]
    assert (order[0], set(order[1:3]), order[3]) == (event, missed, listed)


async def test_a_run_that_is_gone_is_queued_behind_events() -> None:
    operator = Operator(SETTINGS)
    operator._phases.set_phase("team", "gone", "Running")
    await operator._list_runs(FakeCluster().kube)
    event = RunKey("team", "event")
    operator._queue.add(event)
    assert await operator._queue.get() == event
