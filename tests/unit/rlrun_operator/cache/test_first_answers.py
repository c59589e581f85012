"""Answers for the first looks of a process, read with one list of each kind."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable

import pytest
from rlrun.constants import RUN_LABEL, RUN_UID_LABEL
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import POD, RLCHECKPOINT, SERVICE, ResourceKind
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest
from rlrun_operator.cache import first_answers
from rlrun_operator.cache.cached_reader import CachedReader
from rlrun_operator.cache.first_answers import BY_NAME, BY_UID, read_first_answers
from rlrun_operator.cache.object_cache import ObjectCache, RunName
from rlrun_operator.cache.recording_transport import RecordingTransport

from tests.support.cache_feed import CacheFeed
from tests.support.fake_cluster import FakeCluster

FIRST, OTHERS, EMPTY = ("team", "first"), ("other", "first"), ("team", "empty")
RUNS = {FIRST: "uid-first", OTHERS: "uid-others", EMPTY: "uid-empty"}
ALL = len((*BY_NAME, *BY_UID))


@pytest.fixture(autouse=True)
def three_runs_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_answers, "FEWEST_RUNS", 2)
    monkeypatch.setattr(first_answers, "RUNS_PER_PAGE", 2)


def child(kind: ResourceKind, name: str, run: RunName, **metadata: object) -> Obj:
    labels = {RUN_LABEL: run[1], RUN_UID_LABEL: RUNS.get(run, "uid-of-none")}
    found = {"name": name, "namespace": run[0], "uid": name, "labels": labels, **metadata}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": found}


class World:
    def __init__(self) -> None:
        self.fake = FakeCluster(
            child(POD, "first-a", FIRST),
            child(POD, "first-b", FIRST, managedFields=[{"manager": "somebody"}]),
            child(POD, "others", OTHERS),
            child(POD, "of-no-run-that-is-asked-for", ("team", "finished")),
            child(RLCHECKPOINT, "step-10", FIRST),
        )
        self.cache = ObjectCache(time.monotonic)
        self.feed = CacheFeed(self.fake, self.cache)
        self.cluster = AsyncKubeClient(RecordingTransport(self.fake, self.cache))

    async def read(self, runs: Iterable[RunName] = RUNS, *namespaces: str) -> None:
        uids = {run: RUNS[run] for run in runs}
        await read_first_answers(self.cluster, self.cache, namespaces or (None,), uids, watch_seconds=0)
        self.fake.requests.clear()

    async def names(self, kind: ResourceKind, run: RunName) -> list[str]:
        """Return what a look finds of the kind."""
        labels = {RUN_UID_LABEL: RUNS[run]} if kind in BY_UID else {RUN_LABEL: run[1]}
        found = await CachedReader(self.cluster, self.cache, run).list(kind, run[0], labels)
        assert not any("managedFields" in obj["metadata"] for obj in found)
        return sorted(obj["metadata"]["name"] for obj in found)


@pytest.fixture
def world() -> World:
    return World()


async def test_first_looks_ask_for_no_list_of_a_single_run(world: World) -> None:
    await world.read()
    assert await world.names(POD, FIRST) == ["first-a", "first-b"]
    assert await world.names(POD, OTHERS) == ["others"]
    assert await world.names(RLCHECKPOINT, FIRST) == ["step-10"]
    for kind in (*BY_NAME, *BY_UID):
        assert await world.names(kind, EMPTY) == []
    assert world.fake.requests == []
    assert len(world.cache) == len(RUNS) * ALL, "nothing of runs that are not asked for"


async def test_one_list_of_each_kind(world: World) -> None:
    await read_first_answers(world.cluster, world.cache, [None], RUNS)
    assert len(world.fake.requests) == ALL


async def test_a_few_runs_are_read_by_their_looks(world: World) -> None:
    await read_first_answers(world.cluster, world.cache, [None], {FIRST: RUNS[FIRST]})
    assert world.fake.requests == []


async def test_a_list_of_more_pages_than_it_is_worth_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pages(kind: ResourceKind, *_: object) -> AsyncIterator[list[Obj]]:
        for name in ("step-10", "step-20") if kind == RLCHECKPOINT else ("only",):
            listed.append(f"{kind.plural} {name}")
            yield [child(kind, name, FIRST, resourceVersion="1")]

    listed: list[str] = []
    monkeypatch.setattr(world.cluster, "pages", pages)
    await world.read()
    monkeypatch.undo()
    assert "rlcheckpoints step-20" in listed
    assert await world.names(POD, FIRST) == ["only"]
    assert world.fake.requests == []
    assert await world.names(RLCHECKPOINT, FIRST) == ["step-10"], "what the API server has"
    assert len(world.fake.requests) == 1


async def test_a_list_of_more_bytes_than_may_be_kept_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.fake.put(child(SERVICE, "large", FIRST, annotations={"note": 2000 * "x"}))
    monkeypatch.setattr(first_answers, "LARGEST_LIST", 2000)
    await world.read()
    assert await world.names(POD, FIRST) == ["first-a", "first-b"]
    assert world.fake.requests == []
    assert await world.names(SERVICE, FIRST) == ["large"]
    assert len(world.fake.requests) == 1


async def test_without_a_run_nothing_is_listed(world: World) -> None:
    await read_first_answers(world.cluster, world.cache, [None], {})
    assert world.fake.requests == []


async def test_only_the_namespaces_that_are_watched_and_have_many_runs_are_listed(world: World) -> None:
    await read_first_answers(world.cluster, world.cache, ["team", "other"], RUNS)
    assert {request.namespace for request in world.fake.requests} == {"team"}
    world.fake.requests.clear()
    assert await world.names(POD, FIRST) == ["first-a", "first-b"]
    assert world.fake.requests == []
    await world.names(POD, OTHERS)
    assert len(world.fake.requests) == 1


async def test_a_later_change_is_seen(world: World) -> None:
    await world.read()
    world.fake.put(child(POD, "first-c", FIRST))
    world.feed.deliver()
    assert await world.names(POD, FIRST) == ["first-a", "first-b", "first-c"]


async def test_a_change_while_the_list_is_read_is_not_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    send = world.fake.send

    async def change_meanwhile(request: KubeRequest) -> Obj:
        answer = await send(request)
        if request.kind == POD:
            world.fake.put(child(POD, "late", EMPTY))
            world.feed.deliver()
        return answer

    monkeypatch.setattr(world.fake, "send", change_meanwhile)
    await world.read()
    monkeypatch.undo()
    assert await world.names(POD, EMPTY) == ["late"]
    assert await world.names(POD, FIRST) == ["first-a", "first-b"]
    assert len(world.fake.requests) == 1, "only the run that has changed is read again"


async def test_of_a_kind_without_a_watch_nothing_is_kept_and_the_others_are(world: World) -> None:
    world.cache.watch_closed(SERVICE)
    await world.read()
    assert await world.names(POD, FIRST) == ["first-a", "first-b"]
    assert world.fake.requests == []
    await world.names(SERVICE, FIRST)
    assert len(world.fake.requests) == 1


async def test_a_watch_that_opens_a_moment_later_is_waited_for(world: World) -> None:
    world.cache.watch_closed(SERVICE)
    reading = asyncio.create_task(read_first_answers(world.cluster, world.cache, [None], RUNS, watch_seconds=10))
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(world.fake.requests) == ALL - 1, "the others do not wait for it"
    world.cache.watch_opened(SERVICE, None, ())
    await reading
    world.fake.requests.clear()
    await world.names(SERVICE, FIRST)
    assert world.fake.requests == []


async def test_a_list_that_fails_leaves_the_rest_to_the_looks(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    send = world.fake.send

    async def refuse(request: KubeRequest) -> Obj:
        if request.kind == POD:
            raise ApiError(403, "Forbidden", "no right to list pods")
        return await send(request)

    monkeypatch.setattr(world.fake, "send", refuse)
    await world.read()
    monkeypatch.undo()
    assert "no right to list pods" in caplog.text
    assert await world.names(RLCHECKPOINT, FIRST) == ["step-10"]
    assert world.fake.requests == [], "the other lists were kept"
    assert await world.names(POD, FIRST) == ["first-a", "first-b"]


async def test_a_list_that_hangs_delays_the_looks_for_a_limited_time(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def hang(request: KubeRequest) -> Obj:
        await asyncio.Event().wait()
        raise AssertionError(request)

    monkeypatch.setattr(world.fake, "send", hang)
    await read_first_answers(world.cluster, world.cache, [None], RUNS, seconds=0.01)
    assert "not listed within" in caplog.text
    assert len(world.cache) == 0
