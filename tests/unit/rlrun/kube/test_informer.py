"""The informer against an API server that ends its watches in every way, and beside writes of its own process."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from rlrun.kube import informer as informer_module
from rlrun.kube.errors import TIMEOUT, ApiError
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Labels, Obj
from typing_extensions import override

from tests.unit.rlrun.kube.followed import RUN, Event, Followed, Scripted, service

GONE = ApiError(410, "Expired", "too old")
AWAY = ApiError(0, "Unreachable", "away")


def bookmark(version: int) -> Event:
    return "BOOKMARK", {"metadata": {"resourceVersion": str(version)}}


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that were asked for. None takes time."""
    asked: list[float] = []

    async def note(seconds: float) -> None:
        asked.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(informer_module, "sleep", note)
    return asked


async def test_changes_arrive_and_the_next_watch_begins_after_them() -> None:
    source = Scripted(
        [(10, [service("a", 1), service("b", 2), service("c", 3)])],
        [[("MODIFIED", service("a", 12)), ("DELETED", service("b", 13)), ("ADDED", service("d", 14))], [bookmark(20)]],
    )
    followed = await Followed(source, namespace="team", labels={"managed": "yes"}).follow()
    assert followed.names == ["a12", "c3", "d14"]
    assert followed.told == ["a12", "b2-", "d14"], "nothing of the first list"
    assert source.versions == ["10", "14", "20"]
    assert source.asked == [("team", {"managed": "yes"})]
    assert followed.informer.version == 20
    assert followed.informer.find("team", "b") is None
    assert followed.informer.find_uid("other", "uid-a") is None


async def test_objects_that_a_watch_deletes_are_not_remembered_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer_module, "MAX_REMOVED", 2)
    events = [(kind, service(f"s{n}", 11 + n)) for n in range(9) for kind in ("ADDED", "DELETED")]
    followed = await Followed(Scripted([(10, [])], [events])).follow()
    remembered = {*followed.informer._removed, *followed.informer._removed_lately}
    assert len(remembered) == 2, "a watch may continue for months without a list"


async def test_all_is_synced_with_the_first_list_only() -> None:
    followed = Followed(Scripted([AWAY, (10, [])]))
    waiting = asyncio.create_task(followed.informer.until_synced())
    await asyncio.sleep(0)
    assert not followed.informer.is_synced
    assert not waiting.done()
    await followed.follow()
    assert followed.informer.is_synced
    await waiting


@pytest.mark.parametrize("end", [GONE, AWAY, ApiError(403, "Forbidden", "no right")])
async def test_a_gap_is_found_by_comparing_a_list_with_the_store(end: ApiError) -> None:
    before = [service("same", 1), service("changed", 2), service("gone", 3), service("anew", 4)]
    after = [service("same", 1), service("changed", 20), service("anew", 21, uid="other"), service("added", 22)]
    source = Scripted([(10, before), (30, after)], [end])
    followed = await Followed(source).follow()
    assert sorted(followed.told) == ["added22", "anew21", "anew4-", "changed20", "gone3-"]
    assert followed.names == ["added22", "anew21", "changed20", "same1"]
    assert source.versions == ["10", "30"]


async def test_objects_stay_while_the_api_server_is_away() -> None:
    followed = await Followed(Scripted([(10, [service("a", 1)]), AWAY, AWAY, (10, [service("a", 1)])], [AWAY])).follow()
    assert (followed.names, followed.told) == (["a1"], [])


async def test_an_older_version_in_a_list_counts_because_it_may_come_from_a_backup() -> None:
    followed = await Followed(Scripted([(10, [service("a", 9)]), (5, [service("a", 4)])], [GONE])).follow()
    assert followed.names == ["a4"]
    assert followed.told == ["a4"]


async def test_an_object_of_a_backup_that_had_been_deleted_is_there_again() -> None:
    source = Scripted([(10, [service("a", 9)]), (5, [service("a", 4)])], [[("DELETED", service("a", 11)), GONE]])
    followed = await Followed(source).follow()
    assert (followed.names, followed.told) == (["a4"], ["a9-", "a4"])


async def test_what_is_written_during_a_list_is_kept_if_it_is_newer() -> None:
    class Writing(Scripted):
        @override
        async def all_pages(self, *place: Any) -> AsyncIterator[tuple[list[Obj], str]]:
            async for page in super().all_pages(*place):
                yield page
                followed.informer.put(service("b", 12))
            followed.informer.put(service("new", 11))
            followed.informer.put(service("deleted-before", 9))

    followed = Followed(Writing([(10, [service("a", 1), service("c", 1), service("b", 2)])]))
    await followed.informer.list()
    assert followed.names == ["a1", "b12", "c1", "new11"]


async def test_a_list_that_breaks_off_is_not_taken_for_all() -> None:
    class Broken(Scripted):
        @override
        async def all_pages(self, *place: Any) -> AsyncIterator[tuple[list[Obj], str]]:
            pages = 0
            async for page in super().all_pages(*place):
                if len(self.asked) == 2 and pages:
                    raise AWAY
                pages += 1
                yield page

    everything = [service(name, 1) for name in "abcd"]
    followed = await Followed(Broken([(10, everything), (10, everything), (10, everything)], [GONE])).follow()
    assert (followed.names, followed.told) == (["a1", "b1", "c1", "d1"], [])


async def test_a_connection_that_is_silent_is_given_up(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer_module, "SILENCE_SECONDS", 0.01)
    logged: list[Exception] = []
    source = Scripted([(10, []), (20, [])])
    followed = Followed(source)
    monkeypatch.setattr(followed.informer, "_log_end", lambda error, _: logged.append(error))
    task = asyncio.create_task(followed.informer.follow())
    async with asyncio.timeout(60):
        while len(source.versions) < 2:  # noqa: ASYNC110  # the watch that hangs sets no event
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert isinstance(logged[0], ApiError)
    assert logged[0].reason == TIMEOUT
    assert source.versions[:2] == ["10", "20"]
    assert source.closed == len(source.versions), "no connection is left"
    assert pauses[0] == 1


async def test_a_server_that_refuses_is_asked_less_and_less_often(pauses: list[float]) -> None:
    source = Scripted([(10, [])] * 8, [ApiError(403, "Forbidden", "no right")] * 7)
    await Followed(source, clock=lambda: 0.0).follow()
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


async def test_a_server_that_was_healthy_is_asked_again_soon(pauses: list[float]) -> None:
    times = iter(range(0, 1000, 100))
    await Followed(Scripted([AWAY, AWAY, (10, [])]), clock=lambda: float(next(times))).follow()
    assert pauses == [1, 1]


@pytest.mark.parametrize(("seconds", "pause"), [(0.0, 1.0), (0.5, 2.0), (20.0, 30.0)])
async def test_after_a_410_the_next_list_begins_soon_unless_lists_take_long(
    pauses: list[float], seconds: float, pause: float
) -> None:
    class Slow(Scripted):
        now = 0.0

        @override
        async def all_pages(
            self, kind: ResourceKind, namespace: str | None = None, labels: Labels | None = None
        ) -> AsyncIterator[tuple[list[Obj], str]]:
            self.now += seconds
            async for page in super().all_pages(kind, namespace, labels):
                yield page

    source = Slow([(10, [])] * 6, [GONE] * 5)
    await Followed(source, clock=lambda: source.now).follow()
    assert pauses == [pause] * 5


async def test_watches_that_end_at_once_are_not_repeated_at_once(pauses: list[float]) -> None:
    source = Scripted([(10, [])], [[], [], []])
    await Followed(source, clock=lambda: 0.0).follow()
    assert (pauses, source.versions) == ([1, 1, 1], ["10"] * 4)


async def test_an_error_of_the_operator_itself_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    followed = Followed(Scripted([(10, []), (20, [])], [[("ADDED", {"metadata": {}})]]))
    await followed.follow()
    assert followed.source.versions == ["10", "20"]
    assert "services are not up to date" in caplog.text


async def test_objects_are_found_by_their_labels() -> None:
    source = Scripted(
        [(10, [service("b", 1), service("a", 2), service("other", 3, run="second")])],
        [[("MODIFIED", service("b", 12, run="second")), ("DELETED", service("other", 13, run="second"))]],
    )
    informer = (await Followed(source).follow()).informer
    assert [cached.name for cached in informer.find_labelled("team", RUN, "first")] == ["a"]
    assert [cached.name for cached in informer.find_labelled("team", RUN, "second")] == ["b"]
    assert informer.find_labelled("other", RUN, "first") == []
    with pytest.raises(ValueError, match="services are not indexed by the label app"):
        informer.find_labelled("team", "app", "first")
    informer.handle_event("DELETED", service("a", 20))
    assert ("team", RUN, "first") not in informer._by_label, "an index of nothing takes no memory"


async def test_large_objects_are_not_stored_but_loaded() -> None:
    large = service("large", 12, spec="x" * 400)
    source = Scripted([(10, [service("small", 1)])], [[("ADDED", large)]])
    informer = (await Followed(source, max_object_bytes=300).follow()).informer
    small, found = informer.find("team", "small"), informer.find("team", "large")
    assert small is not None
    assert found is not None
    assert informer.stored_bytes == len(small.data or b"")
    assert small.read() == service("small", 1)
    with pytest.raises(ValueError, match="team/large is not stored completely"):
        found.read()
    assert await informer.load(small) is small
    loaded = await informer.load(found)
    assert loaded is not None
    assert loaded.read()["spec"] == "loaded"


async def test_small_objects_are_stored_up_to_a_number_of_bytes() -> None:
    size = len(json.dumps(service("a", 1)).encode())
    source = Scripted([(10, [service(name, 1) for name in "abcd"])])
    informer = (await Followed(source, max_bytes=2 * size).follow()).informer
    assert len(list(informer.all())) == 4
    assert informer.stored_bytes == 2 * size
    for name in "abcd":
        informer.handle_event("DELETED", service(name, 20))
    assert informer.stored_bytes == 0


async def test_others_use_the_event_loop_while_a_list_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(informer_module, "OBJECTS_PER_TURN", 1)
    followed = Followed(Scripted([(10, [service(f"a{n}", 1) for n in range(20)])]))
    other = asyncio.create_task(count())
    await followed.informer.list()
    other.cancel()
    assert turns >= 20


async def test_callers_that_need_a_newer_version_share_one_list() -> None:
    followed = Followed(Scripted([(10, [service("a", 1)]), (20, [service("a", 15)])]))
    await followed.informer.list()
    await asyncio.gather(*(followed.informer.catch_up(version) for version in (10, 20, 15)))
    assert (followed.names, followed.told) == (["a15"], ["a15"])
    assert len(followed.source.asked) == 2


async def test_what_a_watch_removes_during_a_list_of_a_caller_stays_removed() -> None:
    class Removing(Scripted):
        @override
        async def all_pages(self, *place: Any) -> AsyncIterator[tuple[list[Obj], str]]:
            async for page in super().all_pages(*place):
                if len(self.asked) == 2:
                    followed.informer.handle_event("DELETED", service("a", 21))
                yield page

    followed = Followed(Removing([(10, [service("a", 1)]), (20, [service("a", 15)])]))
    await followed.informer.list()
    await followed.informer.catch_up(20)
    assert followed.names == []


async def test_informers_that_share_a_limit_list_one_after_the_other() -> None:
    class Slow(Scripted):
        @override
        async def all_pages(self, *place: Any) -> AsyncIterator[tuple[list[Obj], str]]:
            running.append(self)
            assert len(running) == 1
            await asyncio.sleep(0)
            async for page in super().all_pages(*place):
                yield page
            running.clear()

    running: list[Scripted] = []
    limit = asyncio.Semaphore()
    both = [Followed(Slow([(10, [])]), lists=limit) for _ in range(2)]
    await asyncio.gather(*(each.follow() for each in both))


# --- own writes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def own() -> Followed:
    """An informer with the object a1."""
    followed = Followed(Scripted([]))
    followed.informer.put(service("a", 1))
    followed.told.clear()
    return followed


def write(followed: Followed, name: str = "a") -> Any:
    return followed.informer.writing("team", name)


async def test_the_answer_to_a_write_is_stored_at_once_and_its_event_is_no_news(own: Followed) -> None:
    with write(own) as store_answer:
        store_answer(service("a", 5))
    assert own.names == ["a5"]
    own.informer.handle_event("MODIFIED", service("a", 5))
    assert own.told == ["a5="]
    own.informer.handle_event("MODIFIED", service("a", 6))
    assert own.told == ["a5=", "a6"]


async def test_the_events_of_several_own_writes_are_no_news_in_any_place(own: Followed) -> None:
    for version in (5, 6, 7):
        with write(own) as store_answer:
            store_answer(service("a", version))
    for version in (5, 6, 7):
        own.informer.handle_event("MODIFIED", service("a", version))
    assert own.told == ["a5=", "a6=", "a7="]
    assert not own.informer._own


async def test_an_event_before_the_answer_is_stored_and_no_news(own: Followed) -> None:
    with write(own) as store_answer:
        own.informer.handle_event("MODIFIED", service("a", 5))
        assert own.names == ["a5"]
        store_answer(service("a", 5))
    assert own.told == []


async def test_a_new_object_of_this_process_is_told_once(own: Followed) -> None:
    with write(own, "b") as store_answer:
        own.informer.handle_event("ADDED", service("b", 7))
        store_answer(service("b", 7))
    with write(own, "c") as store_answer:
        store_answer(service("c", 8))
    own.informer.handle_event("ADDED", service("c", 8))
    assert (own.names, own.told) == (["a1", "b7", "c8"], ["c8="])


async def test_a_change_by_others_during_a_write_is_told_after_it(own: Followed) -> None:
    with write(own) as store_answer:
        own.informer.handle_event("MODIFIED", service("a", 4))
        store_answer(service("a", 5))
        assert own.told == ["a5="]
    assert own.told == ["a5=", "a5"]


async def test_a_change_by_others_that_an_own_write_has_hidden_is_told(own: Followed) -> None:
    with write(own) as store_answer:
        store_answer(service("a", 5))
    own.informer.handle_event("MODIFIED", service("a", 4))
    own.informer.handle_event("MODIFIED", service("a", 5))
    assert own.told == ["a5=", "a5"], "the current object, and not that of version 4"
    assert own.names == ["a5"]


async def test_a_write_without_an_answer_leaves_its_event_news(own: Followed) -> None:
    with contextlib.suppress(ApiError), write(own):
        own.informer.handle_event("MODIFIED", service("a", 5))
        raise AWAY
    assert own.told == ["a5"]


async def test_two_writes_at_a_time_know_each_others_answers(own: Followed) -> None:
    with write(own) as first:
        with write(own) as second:
            own.informer.handle_event("MODIFIED", service("a", 5))
            own.informer.handle_event("MODIFIED", service("a", 6))
            second(service("a", 6))
        first(service("a", 5))
    assert (own.names, own.told) == (["a6"], [])


async def test_an_answer_with_the_known_version_is_no_write(own: Followed) -> None:
    """A server-side apply that changes nothing."""
    with write(own) as store_answer:
        store_answer(service("a", 1))
    assert own.told == []
    assert not own.informer._own


async def test_an_answer_that_comes_after_the_deletion_revives_nothing(own: Followed) -> None:
    with write(own) as store_answer:
        own.informer.handle_event("DELETED", service("a", 6))
        store_answer(service("a", 5))
    own.informer.put(service("a", 5))
    assert (own.names, own.told) == ([], ["a1-"])


async def test_a_list_knows_the_versions_of_own_writes() -> None:
    followed = Followed(Scripted([(10, [service("a", 1)]), (20, [service("a", 15), service("b", 16)])]))
    await followed.informer.list()
    with write(followed) as store_answer:
        store_answer(service("a", 15))
    await followed.informer.list()
    assert followed.told == ["a15=", "b16"]
    assert not followed.informer._own, "no event of an own write is awaited any more"


async def test_an_object_made_again_under_its_name_has_another_uid(own: Followed) -> None:
    own.informer.put(service("a", 2, uid="second"))
    assert own.informer.find_uid("team", "uid-a") is None
    assert own.informer.find_uid("team", "second") is not None
    own.informer.put(service("a", 1, uid="uid-a"))
    assert own.told == ["a1-", "a2"]


async def test_an_object_that_this_process_has_deleted_is_gone_at_once(own: Followed) -> None:
    own.informer.remove_deleted("uid-a")
    own.informer.remove_deleted("none")
    own.informer.handle_event("MODIFIED", service("a", 5))
    own.informer.handle_event("DELETED", service("a", 6))
    assert (own.names, own.told) == ([], ["a1-"])


async def test_an_object_that_gets_its_labels_back_is_there_again(own: Followed) -> None:
    own.informer.handle_event("DELETED", service("a", 5))
    own.informer.handle_event("ADDED", service("a", 6))
    assert (own.names, own.told) == (["a6"], ["a1-", "a6"])
    own.informer.handle_event("DELETED", service("a", 7))
    with write(own) as store_answer:
        store_answer(service("a", 8))
    assert own.names == ["a8"]


async def test_removed_objects_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch, own: Followed) -> None:
    monkeypatch.setattr(informer_module, "MAX_REMOVED", 3)
    for name in "bcdef":
        own.informer.put(service(name, 2))
        own.informer.handle_event("DELETED", service(name, 3))
    for name in "bcdef":
        own.informer.put(service(name, 2))
    assert own.names == ["a1", "b2", "c2"]
