"""Streams of status: which runs have changed, and what a client that comes back has missed."""

import json
from typing import Any

import pytest
from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.objects.kept_objects import KeptObjects
from rlrun_server.rest.objects.summaries import RunSummary
from rlrun_server.rest.streams import run_changes
from rlrun_server.rest.streams.feed import StreamEnd
from rlrun_server.rest.streams.run_changes import RunChanges
from rlrun_server.rest.streams.run_feeds import NamespaceFeed, StatusFeed

from tests.support.rest_api import rest_api, run_object, uid_of


class World:
    """Runs as the server knows them, and changes that a watch tells of."""

    def __init__(self) -> None:
        self.runs: KeptObjects[RunSummary] = rest_api().services.objects.runs
        self.changes = RunChanges(self.runs)
        self.runs.first_version = self.runs.version = 10

    def put(self, name: str, number: int, version: int, phase: str = "Running", namespace: str = "team") -> None:
        found = run_object(name, namespace, number, phase)
        found["metadata"]["resourceVersion"] = str(version)
        self.runs.version = version
        self.runs.put(found)

    def delete(self, name: str, number: int, version: int) -> None:
        self.runs.version = version
        self.runs.handle_event("DELETED", run_object(name, "team", number))

    def feed(self, cursor: str = "") -> NamespaceFeed:
        return NamespaceFeed(self.runs, self.changes, "team", cursor, "query/last_event_id")


@pytest.fixture
def world() -> World:
    return World()


async def collected(feed: Any) -> list[tuple[str, str, str | None]]:
    events = [(event.type, json.loads(event.data)) for event in await feed.collect()]
    return [(kind, data.get("name", ""), data.get("phase")) for kind, data in events]


async def test_a_namespace_tells_of_changes_and_deletions(world: World) -> None:
    world.put("old", 1, 11)
    feed, woken = world.feed(), []
    feed.subscribe(lambda: woken.append(1))
    assert await collected(feed) == []
    world.put("other", 7, 12, namespace="elsewhere")
    assert woken == []
    world.put("new", 2, 13, "Pending")
    world.put("new", 2, 14, "Running")
    world.delete("old", 1, 15)
    assert len(woken) == 3
    assert await collected(feed) == [("status", "new", "Running"), ("deleted", "old", None)]
    assert await collected(feed) == []
    assert feed.position == "15"


async def test_who_comes_back_gets_what_it_missed(world: World) -> None:
    world.put("a", 1, 11)
    world.put("b", 2, 12)
    cursor = world.feed().position
    world.put("a", 1, 13, "Completed")
    world.delete("b", 2, 14)
    # The last change that it knows may come again.
    assert await collected(world.feed(cursor)) == [("deleted", "b", None), ("status", "a", "Completed")]


async def test_who_comes_back_gets_what_a_list_has_found(world: World) -> None:
    """A server without a watch for a while: its list tells of changes before it is complete."""
    found = run_object("a", "team", 1, "Completed")
    found["metadata"]["resourceVersion"] = "14"
    world.runs.put(found)
    world.runs.version = 15
    assert await collected(world.feed("12")) == [("status", "a", "Completed")]


async def test_who_missed_too_much_lists_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await collected(world.feed("9")) == [("reset", "", None)], "before the first list of this server"
    feed, cursor = world.feed(), world.feed().position
    for number in range(run_changes.REMEMBERED + 1):
        world.put("a", 1, 20 + number)
    assert await collected(feed) == [("reset", "", None)]
    assert await collected(feed) == []
    assert await collected(world.feed(cursor)) == [("reset", "", None)]


async def test_a_run_tells_its_status_first_and_after_changes(world: World) -> None:
    world.put("a", 1, 11)
    feed, woken = StatusFeed(world.runs, world.changes, "team", uid_of(1), is_shown=True), []
    unsubscribe = feed.subscribe(lambda: woken.append(1))
    assert await collected(feed) == [("status", "a", "Running")]
    assert await collected(feed) == []
    world.put("a", 1, 12, "Completed")
    world.put("b", 2, 13)
    assert woken == [1]
    assert await collected(feed) == [("status", "a", "Completed")]
    again = StatusFeed(world.runs, world.changes, "team", uid_of(1), is_shown=True)
    again.resume(feed.position, "p")
    assert await collected(again) == []
    unsubscribe()
    world.delete("a", 1, 14)
    assert woken == [1]
    with pytest.raises(StreamEnd):
        await feed.collect()


async def test_a_run_made_again_under_its_name_is_another_one(world: World) -> None:
    world.put("a", 1, 11)
    feed = world.feed()
    world.put("a", 2, 12)
    assert await collected(feed) == [("deleted", "a", None), ("status", "a", "Running")]


@pytest.mark.parametrize("cursor", ["x", "-1", "9" * 20, "²"])
def test_a_version_of_a_client_is_checked(world: World, cursor: str) -> None:
    with pytest.raises(RestError):
        world.feed(cursor)
