"""Informers of an operator: what they follow, what they store, and what own writes change in them."""

import asyncio

import pytest
from rlrun.constants import FIELD_MANAGER, FINALIZER
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.informer import CachedObject, ObjectChange
from rlrun.kube.kinds import ALL, DEPLOYMENT, POD, RLMODEL, RLRUN, SERVICE, ResourceKind
from rlrun.kube.objects import Obj
from rlrun.kube.requests import METADATA_OF_LIST, KubeRequest, Verb
from rlrun_operator.cluster.informers import FOLLOWED, OWN_KINDS, CachedRun, Informers, convert

from tests.support.cluster_objects import model_object, run_object
from tests.support.expectations import present
from tests.support.fake_cluster import FakeCluster
from tests.support.informer_feed import InformerFeed


class Followed:
    """A cluster in memory, a client whose writes the informers know, and what their listeners are told."""

    def __init__(self, *objects: Obj) -> None:
        self.cluster = FakeCluster(*objects)
        self.feed = InformerFeed(self.cluster)
        self.informers = self.feed.informers
        self.kube = AsyncKubeClient(self.cluster, writing=self.informers.writing)
        self.told: list[tuple[str, str, bool, bool]] = []
        self.informers.listeners.append(self._note)

    def _note(self, kind: ResourceKind, change: ObjectChange[CachedObject]) -> None:
        self.told.append((kind.kind, change.cached.name, change.is_deleted, change.is_own))

    def deliver(self) -> list[tuple[str, str, bool, bool]]:
        """Deliver all events. Returns what listeners were told since the last call."""
        self.feed.deliver()
        told, self.told = self.told, []
        return told


def service(name: str = "s") -> Obj:
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "labels": {"rlrun.dev/run": "reverse"}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": "1.2.3.4"}}


async def test_every_kind_is_listed_once_and_only_the_operators_own_objects_of_other_kinds() -> None:
    cluster = FakeCluster(run_object(), model_object())
    informers = Informers(cluster.kube, FOLLOWED)
    for obj in (*cluster.all(RLRUN.kind), *cluster.all(RLMODEL.kind)):
        informers.receive(ALL[obj["kind"]], None, obj)
    tasks = [asyncio.create_task(job) for job in informers.jobs(lambda: None)]
    async with asyncio.timeout(60):
        await informers.until_synced()
    for task in tasks:
        task.cancel()
    lists = {request.kind: request for request in cluster.requests if "watch" not in request.query}
    assert set(lists) == set(FOLLOWED)
    assert {kind for kind, request in lists.items() if "labelSelector" not in request.query} == set(OWN_KINDS)
    assert {kind for kind, request in lists.items() if request.headers["Accept"] == METADATA_OF_LIST} == set(OWN_KINDS)
    assert lists[POD].query["labelSelector"] == f"app.kubernetes.io/managed-by={FIELD_MANAGER}"
    assert [run.name for run in informers.runs()] == ["reverse"]


def test_each_namespace_has_informers_but_for_kinds_of_the_cluster() -> None:
    informers = Informers(FakeCluster().kube, (POD, RLMODEL), ["one", "two"])
    assert set(informers._informers) == {(POD, "one"), (POD, "two"), (RLMODEL, None)}
    assert informers.find(POD, "one") is None, "nothing is listed yet"


def test_a_run_is_listed_without_its_spec() -> None:
    run = run_object() | {"status": {"phase": "Running", "queue": {"since": "now"}, "conditions": [{"type": "Ready"}]}}
    cached = convert(RLRUN, run)
    assert isinstance(cached, CachedRun)
    assert cached.phase == "Running"
    listed = cached.read_listed()
    assert listed["status"] == {"phase": "Running", "queue": {"since": "now"}}
    assert set(listed["spec"]) == {"model"}
    assert cached.read()["spec"] == run["spec"]


@pytest.mark.parametrize(
    ("queue", "has_slot"),
    [({"admittedTime": "2026-01-01T00:00:01Z"}, True), ({"runsAhead": 1}, False), (None, False), ("broken", False)],
)
def test_a_stored_run_knows_whether_it_has_a_slot(queue: object, has_slot: bool) -> None:
    cached = convert(RLRUN, run_object() | {"status": {"phase": "Pending", "queue": queue}})
    assert isinstance(cached, CachedRun)
    assert cached.has_slot is has_slot


async def test_own_writes_are_in_the_store_at_once_and_no_news() -> None:
    followed = Followed()
    new = service()
    del new["metadata"]["uid"]
    await followed.kube.apply(new)
    (cached,) = present(followed.informers.find(SERVICE, "team")).find_labelled("team", "rlrun.dev/run", "reverse")
    assert "spec" not in cached.read()
    assert followed.deliver() == [("Service", "s", False, True)]
    followed.cluster.put(followed.cluster.held("Service", "s"))
    assert followed.deliver() == [("Service", "s", False, False)]


async def test_an_own_deletion_is_in_the_store_at_once() -> None:
    followed = Followed(
        service(), {**service("stays"), "metadata": {**service("stays")["metadata"], "finalizers": ["a/b"]}}
    )
    for name in ("s", "stays"):
        await followed.kube.delete(SERVICE, "team", name)
    services = present(followed.informers.find(SERVICE, "team"))
    assert all("deletionTimestamp" in cached.read()["metadata"] for cached in services.all())
    assert followed.deliver()[-1] == ("Service", "s", True, False)
    assert [cached.name for cached in services.all()] == ["stays"]


async def test_an_object_that_an_own_deletion_removes_for_good_is_gone_at_once() -> None:
    """The API server answers with a Status, or with the object as it was."""
    for answer in ({"kind": "Status", "status": "Success"}, service()):
        followed = Followed(service())
        followed.cluster.answers["delete Service team/s"] = [answer]
        await followed.kube.delete(SERVICE, "team", "s")
        assert list(present(followed.informers.find(SERVICE, "team")).all()) == []
        assert followed.told == [("Service", "s", True, True)]


async def test_an_own_deletion_spares_what_has_the_name_since() -> None:
    followed = Followed(service())
    services = present(followed.informers.find(SERVICE, "team"))
    successor = service()
    successor["metadata"] |= {"uid": "second", "resourceVersion": "1001"}
    with followed.informers.writing(KubeRequest(Verb.DELETE, SERVICE, "team", "s")) as on_answer:
        gone = service()
        gone["metadata"]["resourceVersion"] = "1000"
        services.handle_event("DELETED", gone)
        services.handle_event("ADDED", successor)
        on_answer({"kind": "Status", "status": "Success"})
    assert [cached.uid for cached in services.all()] == ["second"]
    assert followed.told[-1] == ("Service", "s", False, False)


async def test_a_write_that_fails_changes_nothing() -> None:
    followed = Followed(service())
    followed.cluster.answers["apply Service team/s"] = [ApiError(500, "Internal", "broken")]
    with pytest.raises(ApiError):
        await followed.kube.apply(service())
    assert followed.told == []
    followed.cluster.put(service())
    assert followed.deliver() == [("Service", "s", False, False)], "the API server may have written it all the same"


async def test_a_change_of_the_spec_during_a_write_of_the_status_is_told() -> None:
    followed = Followed(run_object())
    run = followed.cluster.objects["RLRun", "team", "reverse"]
    followed.cluster.put({**run, "spec": {**run["spec"], "suspend": True}})
    changed = followed.cluster.objects["RLRun", "team", "reverse"]
    status = {"apiVersion": run["apiVersion"], "kind": "RLRun", "metadata": {"name": "reverse", "namespace": "team"}}
    await followed.kube.apply_status({**status, "status": {"phase": "Running"}})
    present(followed.informers.find(RLRUN, "team")).handle_event("MODIFIED", changed)
    assert [told[3] for told in followed.told] == [True, False]
    (cached,) = followed.informers.runs()
    assert (cached.phase, cached.read()["spec"]["suspend"]) == ("Running", True)


async def test_writes_of_kinds_that_are_not_followed_pass() -> None:
    followed = Followed()
    await followed.kube.create({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "team"}})
    assert followed.cluster.events
    assert followed.told == []


async def test_the_removal_of_a_finalizer_revives_nothing() -> None:
    run = run_object()
    run["metadata"] |= {"finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    followed = Followed(run)
    await followed.kube.patch(RLRUN, "team", "reverse", {"metadata": {"finalizers": []}})
    assert followed.deliver()[-1] == ("RLRun", "reverse", True, False)
    assert list(followed.informers.runs()) == []


def test_the_bytes_of_all_objects_are_counted() -> None:
    followed = Followed(run_object(), service())
    run, stored = convert(RLRUN, run_object()), followed.informers.stored_bytes
    assert len(run.data or b"") < stored < 10_000
    assert DEPLOYMENT in FOLLOWED
