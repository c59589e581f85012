"""The watch that tells the cache of changes, against an API server that ends it in every way."""

import asyncio
import contextlib
import gc
import json
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.async_transport import AsyncTransport
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import SERVICE, ResourceKind
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest, Verb
from rlrun_operator.cache import metadata_watch
from rlrun_operator.cache.metadata_watch import MetadataWatch
from rlrun_operator.cache.object_cache import ObjectCache, Question
from rlrun_operator.cache.run_index import RunIndex
from typing_extensions import override

RUN = ("team", "first")
LABELS = {"rlrun.dev/run": "first"}
SERVICES = Question.of_labels(SERVICE, "team", LABELS)


def event(kind: str, version: int, name: str = "a") -> bytes:
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "labels": LABELS,
        "resourceVersion": str(version),
    }
    found = {"type": kind, "object": {"kind": "PartialObjectMetadata", "metadata": metadata}}
    return json.dumps(found).encode() + b"\n"


GONE = json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}).encode() + b"\n"


class Stream(AsyncTransport):
    """An API server that answers watches one after the other, and then hangs."""

    def __init__(self, *answers: Sequence[bytes] | ApiError) -> None:
        self.answers = list(answers)
        self.watched_from: list[str] = []
        self.versions = 0
        self.items: list[Obj] = []
        self.done = asyncio.Event()
        self.hangs = False
        """True: the last watch sends nothing for ever, and is not the end."""

    @override
    async def send(self, request: KubeRequest) -> Obj:
        assert request.verb is Verb.LIST
        self.versions += 1
        metadata = {"resourceVersion": str(100 * self.versions)}
        return {"kind": "PartialObjectMetadataList", "metadata": metadata, "items": self.items or None}

    @override
    @asynccontextmanager
    async def stream(self, request: KubeRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        assert request.query["labelSelector"] == "app.kubernetes.io/managed-by=rlrun-operator"
        self.watched_from.append(request.query["resourceVersion"])
        if not self.answers:
            self.done.set()
        if not self.answers or self.hangs:
            self.hangs = False
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer

        async def chunks() -> AsyncIterator[bytes]:
            for chunk in answer:
                yield chunk

        yield chunks()

    @override
    async def close(self) -> None:
        pass


class Watched:
    def __init__(self, stream: Stream, *, kept: bool = True) -> None:
        self.stream = stream
        self.cache = ObjectCache(lambda: 0.0)
        self.index = RunIndex()
        self.changed: list[str] = []
        self.opened = 0
        self.now = 0.0
        opened = self.cache.watch_opened

        def keep_then(*place: Any) -> None:
            opened(*place)
            if kept:
                with self.cache.reading(SERVICES) as read:
                    self.cache.keep(SERVICES, read, [json.loads(event("", 50))["object"]], RUN)

        self.cache.watch_opened = keep_then  # type: ignore[method-assign]

    def note_opening(self, kind: ResourceKind, namespace: str | None) -> None:
        assert (kind, namespace) == (SERVICE, None)
        self.opened += 1

    async def run(self) -> None:
        watch = MetadataWatch(
            AsyncKubeClient(self.stream),
            self.cache,
            self.index,
            SERVICE,
            None,
            lambda o: self.changed.append(o["metadata"]["name"]),
            self.note_opening,
            lambda: self.now,
        )
        task = asyncio.create_task(watch.run())
        await asyncio.wait_for(self.stream.done.wait(), 10)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that were asked for. None takes time."""
    found: list[float] = []

    async def note(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(metadata_watch, "_sleep", note)
    return found


async def test_a_change_by_others_is_told_and_forgotten_in_the_cache() -> None:
    watched = Watched(Stream([event("MODIFIED", 50), event("MODIFIED", 101)]))
    await watched.run()
    assert watched.changed == ["a"], "the version 50 was known"
    assert watched.cache.find(SERVICES, RUN) is None


async def test_the_index_knows_the_runs_of_all_objects() -> None:
    stream = Stream([event("ADDED", 101, "b"), event("DELETED", 102, "a"), event("DELETED", 103, "b")])
    stream.items = [json.loads(event("", 50))["object"]]
    watched = Watched(stream)
    counts = []
    see = watched.index.see

    def note(*place: Any, **options: Any) -> None:
        see(*place, **options)
        counts.append(not watched.index.has_none(SERVICE, RUN))

    watched.index.see = note  # type: ignore[method-assign]
    await watched.run()
    assert counts == [True, True, True, False], "one that is there, one more, one less, none"


async def test_the_list_at_the_beginning_is_not_kept_while_the_watch_lasts() -> None:
    class Big(str):
        pass

    stream = Stream()
    item = json.loads(event("", 50))["object"]
    item["metadata"]["managedFields"] = Big()
    kept = weakref.ref(item["metadata"]["managedFields"])
    stream.items = [item]
    watched = Watched(stream)
    found = []
    opened = watched.note_opening

    def note(kind: ResourceKind, namespace: str | None) -> None:
        opened(kind, namespace)
        stream.items = []

    watched.note_opening = note  # type: ignore[method-assign]
    del item
    watch = asyncio.create_task(watched.run())
    await asyncio.wait_for(stream.done.wait(), 10)
    gc.collect()
    found.append(kept())
    await watch
    assert found == [None]
    assert not watched.index.has_none(SERVICE, RUN)


async def test_the_index_knows_nothing_while_there_is_no_watch() -> None:
    watched = Watched(Stream(ApiError(503, "Unavailable", "try again")))
    known = []
    close = watched.index.watch_closed

    def note(*place: Any) -> None:
        close(*place)
        known.append(watched.index.has_none(SERVICE, RUN))

    watched.index.watch_closed = note  # type: ignore[method-assign]
    await watched.run()
    assert known == [False, False, False], "before it opens, after its end, before it opens again"
    assert watched.index.has_none(SERVICE, RUN)


@pytest.mark.parametrize("kind", ["ADDED", "DELETED"])
async def test_objects_that_come_and_go_are_told(kind: str) -> None:
    watched = Watched(Stream([event(kind, 101, "b" if kind == "ADDED" else "a")]))
    await watched.run()
    assert len(watched.changed) == 1
    assert watched.cache.find(SERVICES, RUN) is None


async def test_the_next_request_goes_on_from_the_last_version_and_events_may_come_in_pieces() -> None:
    text = event("MODIFIED", 101) + event("BOOKMARK", 150, "")
    watched = Watched(Stream([text[:10], text[10:90], text[90:]], []))
    await watched.run()
    assert watched.stream.watched_from == ["100", "150", "150"]
    assert watched.opened == 1
    assert watched.changed == ["a"]


@pytest.mark.parametrize(
    "ending",
    [[GONE], ApiError(410, "Gone", "too old"), ApiError(403, "Forbidden", "no right"), ApiError(0, "Unreachable", "")],
)
async def test_after_a_gap_nothing_old_is_kept(ending: Sequence[bytes] | ApiError) -> None:
    watched = Watched(Stream(ending), kept=False)
    with watched.cache.reading(SERVICES) as read:
        await watched.run()
        watched.cache.keep(SERVICES, read, [], RUN)
    assert watched.cache.find(SERVICES, RUN) is None, "it was read before the gap"
    assert watched.stream.watched_from == ["100", "200"]
    assert watched.opened == 2, "anything may have changed before"


@pytest.mark.parametrize(("version", "is_kept"), [(50, True), (51, False)])
async def test_after_a_gap_an_answer_is_kept_if_the_list_has_its_objects(version: int, is_kept: bool) -> None:
    watched = Watched(Stream([GONE]), kept=False)
    before, after = (json.loads(event("", found))["object"] for found in (50, version))
    watched.stream.items = [after]
    found: list[bool] = []

    def note(*_: object) -> None:
        if not found:
            with watched.cache.reading(SERVICES) as read:
                watched.cache.keep(SERVICES, read, [before], RUN)
        found.append(watched.cache.find(SERVICES, RUN) is not None)

    watched.note_opening = note  # type: ignore[method-assign]
    await watched.run()
    assert found == [True, is_kept]


async def test_nothing_is_kept_while_there_is_no_watch() -> None:
    closed: list[bool] = []
    watched = Watched(Stream([GONE]))
    close = watched.cache.watch_closed

    def noting(*place: Any) -> None:
        close(*place)
        closed.append(watched.cache.find(SERVICES, RUN) is None)

    watched.cache.watch_closed = noting  # type: ignore[method-assign]
    await watched.run()
    assert closed == [True]


async def test_a_watch_that_is_refused_again_and_again_is_asked_for_ever_less_often(pauses: list[float]) -> None:
    await Watched(Stream(*[ApiError(403, "Forbidden", "no right")] * 7)).run()
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


async def test_requests_that_end_at_once_are_not_repeated_at_once(pauses: list[float]) -> None:
    await Watched(Stream([], [], [])).run()
    assert pauses == [1, 1, 1]


async def test_a_connection_that_is_silent_is_given_up(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_watch, "SILENCE_SECONDS", 0.01)
    stream = Stream([])
    stream.hangs = True
    await Watched(stream).run()
    assert stream.versions == 2, "the kind was asked for its version again"
    assert pauses[:1] == [1]
