"""Feeds of pods' logs and of Events, which are read with the rights of the caller."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rlrun.constants import Role
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest, Verb
from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.logs.run_pods import PodSelection
from rlrun_server.rest.run_data.event_feed import EventFeed
from rlrun_server.rest.streams import log_feed
from rlrun_server.rest.streams.log_feed import LogFeed, LogSources

from tests.support.rest_api import uid_of
from tests.unit.rlrun_server.rest.run_data.test_log_routes import pod


class Pods:
    """An API server with pods, whose logs it cuts as Kubernetes does."""

    def __init__(self) -> None:
        self.pods: list[Obj] = [pod("first-orchestrator-x")]
        self.logs: dict[str, list[tuple[float, str]]] = {"first-orchestrator-x": []}
        """Seconds and text of the lines."""
        self.events: list[Obj] = []
        self.status = 0

    async def send(self, request: KubeRequest) -> Obj:
        return {"items": self.pods if request.kind.kind == "Pod" else self.events}

    @asynccontextmanager
    async def stream(self, request: KubeRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        assert request.verb is Verb.LOG
        if self.status:
            raise ApiError(self.status, "Reason", "no log")
        since = request.query.get("sinceTime", "")
        lines = [f"{self.time(at)} {text}\n" for at, text in self.logs[request.name or ""]]
        lines = [line for line in lines if line[:19] >= since[:19]]
        lines = lines[-int(request.query.get("tailLines", len(lines))) :] if lines else []

        async def chunks() -> AsyncIterator[bytes]:
            yield "".join(lines).encode()[: int(request.query["limitBytes"])]

        yield chunks()

    @staticmethod
    def time(at: float) -> str:
        return f"2026-01-01T00:{int(at) // 60:02d}:{int(at) % 60:02d}.{round(at % 1 * 1000):03d}Z"


@pytest.fixture
def pods() -> Pods:
    return Pods()


@pytest.fixture
async def sources() -> AsyncIterator[LogSources]:
    found = LogSources()
    yield found
    found.parsing.close()


def feed_of(pods: Pods, sources: LogSources, cursor: str = "") -> LogFeed:
    async def cluster() -> Any:
        return pods

    return LogFeed(
        cluster, sources, ("team", "first", uid_of(1)), PodSelection([Role.orchestrator, Role.trainer]), cursor, "p"
    )


async def messages(feed: LogFeed) -> list[str]:
    return [line["message"] for event in await feed.collect() for line in json.loads(event.data)["lines"]]


async def test_a_stream_begins_with_the_last_lines_and_goes_on(pods: Pods, sources: LogSources) -> None:
    lines = pods.logs["first-orchestrator-x"]
    lines += [(number / 10, f"line {number}") for number in range(300)]
    feed = feed_of(pods, sources)
    assert await messages(feed) == [f"line {number}" for number in range(200, 300)]
    assert await messages(feed) == []
    lines += [(29.95, "same second"), (31, "later")]
    assert await messages(feed) == ["same second", "later"]


async def test_who_comes_back_misses_no_line_of_any_pod(pods: Pods, sources: LogSources) -> None:
    pods.pods.append(pod("first-trainer-x", "trainer"))
    pods.logs["first-trainer-x"] = [(1, "t1")]
    pods.logs["first-orchestrator-x"] += [(5, "o5")]
    feed = feed_of(pods, sources)
    assert await messages(feed) == ["t1", "o5"]
    pods.logs["first-trainer-x"] += [(2, "t2")]
    pods.pods.append(pod("first-trainer-y", "trainer"))
    pods.logs["first-trainer-y"] = [(number / 100, f"y{number}") for number in range(1, 151)]
    again = await messages(feed_of(pods, sources, feed.position))
    assert "t2" in again
    assert [text for text in again if text.startswith("y")] == [f"y{number}" for number in range(1, 151)]
    assert "o5" not in again


async def test_much_is_read_in_pieces(pods: Pods, sources: LogSources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_feed, "READ_BYTES", 2000)
    monkeypatch.setattr(log_feed, "MIN_POD_BYTES", 2000)
    lines = pods.logs["first-orchestrator-x"]
    lines += [(number, f"line {number}") for number in range(1, 61)]
    feed, found = feed_of(pods, sources), []
    for _ in range(10):
        found += await messages(feed)
    assert found == [f"line {number}" for number in range(1, 61)]


async def test_a_second_that_is_too_long_does_not_stop_the_stream(
    pods: Pods, sources: LogSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_feed, "READ_BYTES", 500)
    monkeypatch.setattr(log_feed, "MIN_POD_BYTES", 500)
    lines = pods.logs["first-orchestrator-x"]
    lines += [(1, "x" * 5000), *((2 + number / 1000, "flood") for number in range(100)), (4, "after")]
    feed, found = feed_of(pods, sources), []
    for _ in range(20):
        found += await messages(feed)
    assert found[-1] == "after"


async def test_a_container_that_has_not_started_has_no_lines(pods: Pods, sources: LogSources) -> None:
    pods.status = 400
    assert await messages(feed_of(pods, sources)) == []
    pods.status = 403
    with pytest.raises(RestError) as caught:
        await feed_of(pods, sources).collect()
    assert caught.value.status == 403


@pytest.mark.parametrize("cursor", ["x", "abcdef", "abcdef.1,", "ABCDEF.1", ",".join(["abcdef.1"] * 33)])
def test_a_position_of_a_client_is_checked(pods: Pods, cursor: str) -> None:
    with pytest.raises(RestError):
        feed_of(pods, LogSources(), cursor)


async def test_events_that_are_new_or_happen_again(pods: Pods) -> None:
    async def cluster() -> Any:
        return pods

    def put(name: str, version: int) -> None:
        pods.events = [event for event in pods.events if event["metadata"]["name"] != name]
        pods.events.append({"metadata": {"name": name, "resourceVersion": str(version)}, "reason": name})

    def names(events: Any) -> list[str]:
        return [json.loads(event.data)["reason"] for event in events]

    put("Second", 12)
    put("First", 11)
    feed = EventFeed(cluster, "team", uid_of(1), "", "p")
    assert names(await feed.collect()) == ["First", "Second"]
    assert names(await feed.collect()) == []
    put("First", 13)
    again = EventFeed(cluster, "team", uid_of(1), feed.position, "p")
    assert names(await again.collect()) == ["First"]
    with pytest.raises(RestError):
        EventFeed(cluster, "team", uid_of(1), "x", "p")
