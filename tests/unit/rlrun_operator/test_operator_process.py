"""What changes start, when workers begin, and what a resync queues."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from rlrun.kube.errors import ApiError
from rlrun.kube.informer import ObjectChange
from rlrun.kube.kinds import ALL, CONFIG_MAP, DEPLOYMENT, JOB, POD, RLADAPTER, RLCHECKPOINT, RLRUN, WORKLOAD
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest, dry_run
from rlrun_operator import operator_process
from rlrun_operator.cluster.informers import FOLLOWED, CachedRun, Informers, convert
from rlrun_operator.config.settings import EgressSettings, KueueSettings, OperatorSettings, QueueSettings, SecretRef
from rlrun_operator.controller.admission_queue import AdmissionQueue
from rlrun_operator.controller.observer import Observer
from rlrun_operator.controller.reconciler import Reconciler
from rlrun_operator.handlers import Handlers
from rlrun_operator.operator_process import Operator, check_request, count_request, ensure_keys
from rlrun_operator.planning.observation import RunKey
from rlrun_operator.resources.access.observed_secret import decode_secret
from rlrun_operator.runtime.leader_election import LeaseLost
from rlrun_operator.runtime.metrics import REGISTRY
from rlrun_operator.serving.reconciler import ServingController
from rlrun_operator.storage.artifact_store import ArtifactStore, Installation

from tests.support.cluster_objects import run_object
from tests.support.fake_cluster import FakeCluster
from tests.support.informer_feed import InformerFeed
from tests.support.operator_world import SETTINGS


def run(name: str, phase: str = "", **status: Any) -> Obj:
    return run_object(name, uid=f"uid-{name}") | ({"status": {"phase": phase, **status}} if phase else {})


class Pools:
    def __init__(self) -> None:
        self.changed: list[str] = []
        self.runs: list[str] = []
        self.configured: list[str] = []
        self.queued = 0

    def on_change(self, obj: Obj) -> None:
        self.changed.append(obj["metadata"]["name"])

    def on_run(self, run: CachedRun, *, is_deleted: bool) -> None:
        self.runs.append(run.name)

    def queue_pool_of(self, run: CachedRun) -> None:
        self.configured.append(run.name)

    def queue_all(self) -> None:
        self.queued += 1


def warm_start(namespace: str, checkpoint: str, phase: str = "Pending", name: str = "waits") -> Obj:
    """Return a run that starts from a checkpoint."""
    obj = run_object(name, uid=f"{namespace}-{name}", checkpointId=checkpoint) | {"status": {"phase": phase}}
    obj["metadata"]["namespace"] = namespace
    return obj


class Settled:
    """A reconciler in which the run `settled` is."""

    def is_settled(self, key: RunKey, version: str) -> bool:
        return key.name == "settled"


RECONCILER = cast(Reconciler, Settled())


def labelled(kind: str, name: str = "x", **labels: str) -> Obj:
    prefixed = {f"rlrun.dev/{key.replace('_', '-')}": value for key, value in labels.items()}
    metadata = {"name": name, "namespace": "team", "uid": name, "resourceVersion": "7", "labels": prefixed}
    return {"kind": kind, "metadata": metadata, "spec": {}}


def names(operator: Operator) -> list[str]:
    """Return the queued runs."""
    keys = [operator._queue._take() for _ in range(len(operator._queue))]
    return sorted(f"{key.namespace}/{key.name}" for key in keys if key is not None)


def concerned(obj: Obj, pools: Pools, *, is_own: bool = False, is_deleted: bool = False) -> list[str]:
    """Return the runs that are queued after a change of the object."""
    waiting = [
        *(run("new"), run("pending", "Pending"), run("trains", "Running"), run("done", "Completed")),
        *(warm_start("other", "none", "Queued", "queued"), run("paused", "Suspended")),
        *(warm_start("team", "late", ""), warm_start("other", "team/late"), warm_start("team", "other/late", name="x")),
        warm_start("team", "late", "Running", "began"),
        *(run(f"shares-{phase}", phase, pool={"name": "rlpool-tiny-00000000"}) for phase in ("Running", "Failed")),
    ]
    informers, operator = InformerFeed(FakeCluster(*waiting)).informers, Operator(SETTINGS)
    kind = ALL[obj["kind"]]
    change = ObjectChange(convert(kind, obj), is_deleted=is_deleted, is_own=is_own)
    Handlers(informers, operator._queue, cast(ServingController, pools)).on_change(kind, change)
    return names(operator)


MODEL = {"kind": "RLModel", "metadata": {"name": "m", "resourceVersion": "7"}, "spec": {}}


@pytest.mark.parametrize(
    ("obj", "runs"),
    [
        (run("trains", "Running"), ["team/trains"]),
        (labelled(POD.kind, run="first"), ["team/first"]),
        (labelled(JOB.kind, run="first"), ["team/first"]),
        (labelled(WORKLOAD.kind, run="first"), ["team/first"]),
        (labelled(POD.kind), []),
        (labelled(POD.kind, serving="rlpool-tiny-00000000"), ["team/shares-Running"]),
        (labelled(POD.kind, serving="rlpool-tiny-11111111"), []),
        (labelled(RLCHECKPOINT.kind, run="first"), ["team/first"]),
        (labelled(RLADAPTER.kind, run="first"), ["team/first"]),
        (labelled(RLCHECKPOINT.kind, "late"), ["team/waits"]),
        (labelled(RLCHECKPOINT.kind, "late") | {"spec": {"sharedWith": ["other"]}}, ["other/waits", "team/waits"]),
        (MODEL, ["other/queued", "other/waits", "team/new", "team/pending", "team/waits", "team/x"]),
    ],
    ids=[
        "run",
        "pod",
        "job",
        "workload",
        "other pod",
        "pod of a pool",
        "of another",
        "checkpoint",
        "adapter",
        "awaited",
        "awaited by two",
        "model",
    ],
)
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_change_queues_the_runs_that_it_concerns(obj: Obj, runs: list[str], is_deleted: bool) -> None:
    assert concerned(obj, Pools(), is_deleted=is_deleted) == runs


@pytest.mark.parametrize(
    ("obj", "runs"),
    [
        (run("trains", "Running"), []),
        (labelled(POD.kind, run="first"), []),
        (MODEL, []),
        # Writes of pools decide which adapters retention may delete.
        (labelled(RLADAPTER.kind, run="first"), ["team/first"]),
    ],
    ids=["run", "pod", "model", "adapter"],
)
def test_an_own_write_queues_no_run_but_for_artifacts(obj: Obj, runs: list[str]) -> None:
    assert concerned(obj, Pools(), is_own=True) == runs


@pytest.mark.parametrize("is_own", [False, True])
def test_pools_are_told_of_all_changes_of_runs(is_own: bool) -> None:
    pools = Pools()
    concerned(run("joins", "Pending"), pools, is_own=is_own)
    assert pools.runs == ["joins"]


def test_changes_reach_the_pools_that_they_concern() -> None:
    pools = Pools()
    for obj in (
        labelled(POD.kind, "of-a-pool", serving="tiny"),
        labelled(DEPLOYMENT.kind, "pool", serving="tiny"),
        labelled(RLADAPTER.kind, "adapter", run="first"),
        labelled(POD.kind, "of-a-run", run="first"),
        MODEL,
    ):
        concerned(obj, pools)
    assert (pools.changed, pools.queued) == (["of-a-pool", "pool", "adapter"], 1)


@pytest.mark.parametrize("is_own", [False, True])
def test_a_pool_hears_of_the_configurations_of_its_runs(is_own: bool) -> None:
    pools = Pools()
    for name in ("waits", "trains", "absent"):
        concerned(labelled(CONFIG_MAP.kind, f"{name}-config", run=name), pools, is_own=is_own)
    assert pools.configured == ["waits", "trains"]


@pytest.mark.parametrize("kueue", [None, KueueSettings()])
def test_workloads_are_followed_only_with_kueue(kueue: KueueSettings | None) -> None:
    informers = Operator(SETTINGS.model_copy(update={"kueue": kueue}))._informers(FakeCluster().kube)
    assert ((WORKLOAD, None) in informers._informers) is (kueue is not None)


def test_only_the_watched_namespaces_are_followed() -> None:
    settings = SETTINGS.model_copy(update={"watch_namespaces": ["one", "two"]})
    informers = Operator(settings)._informers(FakeCluster().kube)
    assert {namespace for kind, namespace in informers._informers if kind.namespaced} == {"one", "two"}


LIMITED = SETTINGS.model_copy(update={"queue": QueueSettings(max_runs=9)})


async def begun(operator: Operator, informers: Informers, admissions: AdmissionQueue | None = None) -> bool:
    """Return whether the workers have begun after the time for the first lists."""
    admissions = admissions or AdmissionQueue(operator._settings, operator._queue.add)
    starting = asyncio.create_task(operator._start_workers(informers, admissions))
    await asyncio.sleep(0.05)
    starting.cancel()
    return operator._may_work.is_set()


async def test_the_workers_begin_when_all_kinds_are_listed() -> None:
    feed = InformerFeed(FakeCluster(run("first")))
    feed.informers._informers[POD, None]._synced.clear()
    operator = Operator(SETTINGS)
    assert not await begun(operator, feed.informers)
    feed.informers._informers[POD, None]._synced.set()
    assert await begun(operator, feed.informers)


@pytest.mark.parametrize("settings", [SETTINGS, LIMITED])
async def test_of_lists_that_are_refused_only_that_of_the_runs_stops_the_workers(
    settings: OperatorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without limits: pools have slots, which must not be given twice."""
    monkeypatch.setattr(operator_process, "LISTS_SECONDS", 0.01)
    informers, operator = Informers(FakeCluster().kube, FOLLOWED), Operator(settings)
    assert not await begun(operator, informers)
    informers._informers[RLRUN, None]._synced.set()
    assert await begun(operator, informers)


async def test_without_limits_the_queue_begins_with_the_runs_that_have_or_await_a_slot_of_a_pool() -> None:
    since = "2026-01-01T00:00:00Z"
    placed = run("placed", "Running", queue={"since": since, "admittedTime": since}, pool={"name": "rlpool-a"})
    waiting = run("waiting", "Queued", queue={"since": since}, reason="PoolFull")
    operator = Operator(SETTINGS)
    admissions = AdmissionQueue(SETTINGS, operator._queue.add)
    cluster = FakeCluster(placed, waiting, run("alone", "Running"))
    assert await begun(operator, InformerFeed(cluster).informers, admissions)
    assert {entry.uid for entry in admissions._entries.values()} == {"uid-placed", "uid-waiting"}


async def test_the_queue_begins_with_the_places_in_the_statuses() -> None:
    since = "2026-01-01T00:00:00Z"
    placed = run("placed", "Running", queue={"since": since, "admittedTime": since})
    ended = run("ended", "Completed", queue={"since": since, "admittedTime": since})
    operator = Operator(LIMITED)
    admissions = AdmissionQueue(LIMITED, operator._queue.add)
    assert await begun(operator, InformerFeed(FakeCluster(placed, ended, run("done", "Failed"))).informers, admissions)
    assert {entry.uid for entry in admissions._entries.values()} == {"uid-placed", "uid-ended"}
    assert all(entry.admitted_time is not None for entry in admissions._entries.values())


async def test_a_resync_queues_all_runs_that_are_not_settled_behind_events() -> None:
    feed, operator = InformerFeed(FakeCluster(run("first"), run("settled", "Completed"))), Operator(SETTINGS)
    await operator._queue_runs(feed.informers, RECONCILER)
    event = RunKey("team", "event")
    operator._queue.add(event)
    assert await operator._queue.get() == event
    assert names(operator) == ["team/first"]
    sweep = Operator(SETTINGS)
    await sweep._queue_runs(feed.informers, None)
    assert names(sweep) == ["team/first", "team/settled"]


def test_a_question_whether_an_object_could_be_created_is_counted_as_no_write() -> None:
    def counted(verb: str) -> float:
        return REGISTRY.get_sample_value("rlrun_api_requests_total", {"verb": verb, "kind": "pods"}) or 0

    pod = {"apiVersion": "v1", **labelled("Pod")}
    created, asked = counted("create"), counted("dry_run")
    count_request(dry_run(pod, "rlrun"))
    assert (counted("create"), counted("dry_run")) == (created, asked + 1)


async def test_nothing_is_written_without_the_lease() -> None:
    """An operator that hangs, and comes back after another one has taken over, has its requests still before it."""
    cluster = FakeCluster(run("first"))
    held, send = [True], cluster.send

    async def checked(request: KubeRequest) -> Obj:
        check_request(lambda: held[0], request)
        return await send(request)

    cluster.send = checked  # type: ignore[method-assign]
    change = {"metadata": {"labels": {"a": "b"}}}
    await cluster.kube.patch(RLRUN, "team", "first", change)
    held[0] = False
    for write in (
        cluster.kube.patch(RLRUN, "team", "first", change),
        cluster.kube.apply_status(run("first", "Failed")),
        cluster.kube.create(run("second")),
        cluster.kube.delete(RLRUN, "team", "first"),
    ):
        with pytest.raises(LeaseLost):
            await write
    assert await cluster.kube.get(RLRUN, "team", "first")
    assert len(await cluster.kube.list(RLRUN, "team")) == 1


@pytest.mark.parametrize("create", [True, False])
async def test_the_egress_key_is_made_once_unless_the_platform_team_does(create: bool) -> None:
    egress = EgressSettings(
        host="rlrun-egress.rlrun-system.svc",
        key_secret=SecretRef(namespace="rlrun-system", name="rlrun-egress"),
        create_key=create,
    )
    settings, cluster = SETTINGS.model_copy(update={"egress": egress}), FakeCluster()
    keys = await ensure_keys(cluster.kube, settings)
    assert len(set(keys)) == 2
    made = cluster.find("Secret", "rlrun-egress", "rlrun-system")
    assert (made is not None) is create
    if made is not None:
        assert len(decode_secret(made)["key"]) >= 16, "the proxy and the operator read it as text"
    assert await ensure_keys(cluster.kube, settings) == keys
    assert cluster.find("Secret", "rlrun-egress", "rlrun-system") == made


class Bucket:
    """The part of ArtifactStore that writes the mark."""

    installation: Installation | None = None

    async def mark_installation(self, variables: Mapping[str, str]) -> None:
        assert self.installation is not None


async def test_a_request_that_failed_once_at_the_start_does_not_stop_deletions_for_a_minute() -> None:
    system = {"kind": "Namespace", "metadata": {"name": "kube-system", "uid": "7"}}
    cluster, bucket = FakeCluster(), Bucket()
    cluster.answers["get Namespace kube-system"] = [ApiError(503, "ServiceUnavailable", "in a storm"), system]
    observer = SimpleNamespace(s3_variables=AsyncMock(return_value={}))
    marking = Operator(SETTINGS)._mark_installation(cluster.kube, cast(ArtifactStore, bucket), cast(Observer, observer))
    await asyncio.wait_for(marking, 30)
    assert bucket.installation is not None
