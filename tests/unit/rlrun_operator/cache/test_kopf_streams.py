"""kopf's own loop over its streams, with streams in memory: when the cache keeps answers, and what a 410 ends."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import kopf
import pytest
from kopf._cogs.clients import watching
from kopf._cogs.clients.errors import APIClientError
from rlrun.kube.kinds import RLRUN, ResourceKind
from rlrun.kube.objects import Obj
from rlrun_operator.cache import kopf_streams
from rlrun_operator.cache.kopf_streams import watched_streams
from rlrun_operator.cache.object_cache import ObjectCache, Question

QUESTION = Question.one(RLRUN, "team", "first")
PLACE = ("team", "first")


@dataclass(frozen=True)
class Resource:
    """A kind as kopf knows it."""

    plural: str


def error(status: int) -> APIClientError:
    return APIClientError(None, status=status, headers={})


def keeps(cache: ObjectCache) -> bool:
    """Return whether the cache keeps an answer that is read now."""
    with cache.reading(QUESTION) as read:
        cache.keep(QUESTION, read, [], PLACE)
    return cache.find(QUESTION, PLACE) is not None


async def follow(
    monkeypatch: pytest.MonkeyPatch, cache: ObjectCache, streams: list[Callable[[], AsyncIterator[Any]]]
) -> list[Any]:
    """Let kopf follow one stream after the other. Returns the events, and whether the cache kept answers at each."""
    waiting = list(streams)

    async def continuous_watch(**_: Any) -> AsyncIterator[Any]:
        async for event in waiting.pop(0)():
            yield event

    monkeypatch.setattr(watching, "continuous_watch", continuous_watch)
    settings = kopf.OperatorSettings()
    settings.watching.reconnect_backoff = 0
    found = []
    places: list[str | None] = []

    def is_needed(_: object, event: str | None, obj: Obj) -> bool:
        return event != "BOOKMARK" and (event is not None or obj["metadata"]["name"] != "ended")

    def note(kind: ResourceKind, place: str | None) -> None:
        assert kind == RLRUN
        places.append(place)

    with watched_streams(cache, {"rlruns": RLRUN}, is_needed, note):
        events = watching.infinite_watch(
            settings=settings,
            resource=Resource("rlruns"),  # type: ignore[arg-type]
            namespace=None,
            _iterations=len(streams),
        )
        async for event in events:
            found.append(
                (event if isinstance(event, watching.Bookmark) else event["object"]["metadata"]["name"], keeps(cache))
            )
    assert places == [None] * sum(event is watching.Bookmark.LISTED for event, _ in found)
    assert watching.continuous_watch is continuous_watch
    return found


async def stream(*events: Any, end: Exception | None = None) -> AsyncIterator[Any]:
    """Yield the list up to LISTED, and then changes."""
    kind = None
    for event in events:
        if event is watching.Bookmark.LISTED:
            kind = "MODIFIED"
            yield event
        else:
            yield {
                "type": "BOOKMARK" if event == "version" else kind,
                "object": {"metadata": {"name": event, "namespace": "team", "uid": event, "resourceVersion": "1"}},
            }
    if end is not None:
        raise end


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(kopf_streams.asyncio, "sleep", sleep)
    return found


async def test_answers_are_kept_from_the_end_of_the_list_to_the_end_of_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = ObjectCache(lambda: 0.0)
    whole = ["listed object", watching.Bookmark.LISTED, "change"]
    found = await follow(monkeypatch, cache, [lambda: stream(*whole), lambda: stream(*whole)])
    assert found == 2 * [("listed object", False), (watching.Bookmark.LISTED, True), ("change", True)]
    assert cache.find(QUESTION, PLACE) is None
    assert not keeps(cache)


@pytest.mark.parametrize(("listed", "is_kept"), [(["first"], True), (["first", "second"], True), ([], False)])
async def test_after_a_gap_answers_are_kept_if_the_new_list_has_the_same_objects(
    monkeypatch: pytest.MonkeyPatch, listed: list[str], is_kept: bool
) -> None:
    cache = ObjectCache(lambda: 0.0)
    question = Question.one(RLRUN, "team", "first")
    found: list[bool] = []

    async def streams(*names: str) -> AsyncIterator[Any]:
        async for event in stream(*names, watching.Bookmark.LISTED):
            yield event
        found.append(cache.find(question, PLACE) is not None)
        if not found[:-1]:
            with cache.reading(question) as read:
                cache.keep(question, read, [first], PLACE)

    first = {"metadata": {"name": "first", "namespace": "team", "uid": "first", "resourceVersion": "1"}}
    monkeypatch.setattr(sys.modules[__name__], "keeps", lambda _: False)
    await follow(monkeypatch, cache, [lambda: streams("first"), lambda: streams(*listed)])
    assert found == [False, is_kept]


async def test_listed_objects_without_need_are_left_out_and_their_changes_come(monkeypatch: pytest.MonkeyPatch) -> None:
    events = ["ended", "active", watching.Bookmark.LISTED, "ended", "version"]
    found = await follow(monkeypatch, ObjectCache(lambda: 0.0), [lambda: stream(*events)])
    assert [event for event, _ in found] == events[1:]


async def test_a_response_with_410_is_followed_by_a_new_list_after_growing_pauses(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    cache = ObjectCache(lambda: 0.0)
    gone = [lambda: stream(end=error(410))] * 7
    found = await follow(monkeypatch, cache, [*gone, lambda: stream(watching.Bookmark.LISTED, "change")])
    assert [event for event, _ in found] == [watching.Bookmark.LISTED, "change"]
    assert [pause for pause in pauses if pause] == [1, 2, 4, 8, 16, 30, 30]


async def test_another_error_ends_the_watch_and_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ObjectCache(lambda: 0.0)
    with pytest.raises(APIClientError):
        await follow(monkeypatch, cache, [lambda: stream(watching.Bookmark.LISTED, end=error(403))])
    assert not keeps(cache)


async def test_the_pause_lets_other_work_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kopf_streams, "FIRST_PAUSE", 0.05)
    others: list[bool] = []

    async def other() -> None:
        others.append(True)

    task = asyncio.create_task(other())
    await follow(monkeypatch, ObjectCache(lambda: 0.0), [lambda: stream(end=error(410))])
    await task
    assert others
