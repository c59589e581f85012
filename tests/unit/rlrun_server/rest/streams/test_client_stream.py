"""One stream: order and ids of events, heartbeats, rights and ends. The clock is the test's."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable

import pytest
from rlrun.service.errors import ProblemError
from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.streams import client_stream
from rlrun_server.rest.streams.client_stream import ClientStream
from rlrun_server.rest.streams.feed import Feed, StreamEnd, StreamEvent, Wake
from rlrun_server.rest.streams.stream_models import ByeReason
from typing_extensions import override

from tests.support.open_stream import EventReader, ServerEvent


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Pass the time at once, unless something happens."""
        for _ in range(5):
            await asyncio.sleep(0)
        if not event.is_set():
            assert not math.isinf(seconds)
            self.now += max(seconds, 0.001)


class ScriptedFeed(Feed):
    """Returns the batches of a script."""

    def __init__(
        self, letter: str, *batches: list[StreamEvent] | Exception, period: float = math.inf, pause: float = 0.0
    ) -> None:
        self.letter, self.period, self.pause = letter, period, pause
        self.batches = list(batches)
        self.collected = 0
        self.wake: Wake = lambda: None
        self.is_closed = False

    @property
    def position(self) -> str:
        return ""

    @override
    def subscribe(self, wake: Wake) -> Wake:
        self.wake = wake

        def unsubscribe() -> None:
            self.is_closed = True

        return unsubscribe

    @override
    async def collect(self) -> list[StreamEvent]:
        self.collected += 1
        found = self.batches.pop(0) if self.batches else []
        if isinstance(found, Exception):
            raise found
        return found


def event(number: int, kind: str = "status") -> StreamEvent:
    return StreamEvent(kind, json.dumps({"number": number}).encode(), str(number))


async def allowed() -> None:
    pass


def stream_of(clock: Clock, *feeds: Feed, confirm: Callable[[], Awaitable[None]] = allowed) -> ClientStream:
    return ClientStream(feeds, confirm, clock, clock.wait)


async def events_of(stream: ClientStream, count: int = 1000) -> tuple[list[ServerEvent], EventReader]:
    """Return the first events, and what else came."""
    reader = EventReader()
    found: list[ServerEvent] = []
    while len(found) < count and (chunk := await stream.next_chunk()) is not None:
        found += reader.feed(chunk)
    return found, reader


async def test_events_have_the_positions_of_all_feeds_as_id() -> None:
    clock = Clock()
    first = ScriptedFeed("a", [event(1), event(2)], [event(3)])
    second = ScriptedFeed("b", [event(7, "log")])
    found, reader = await events_of(stream_of(clock, first, second), 4)
    assert reader.comments == ["open"]
    by_type = [(each.type, each.data["number"]) for each in found]
    assert sorted(by_type) == [("log", 7), ("status", 1), ("status", 2), ("status", 3)]
    assert found[0].id == "1;a=1"
    assert found[-1].id == "1;a=3;b=7"


async def test_a_quiet_stream_says_that_it_is_there() -> None:
    clock = Clock()
    stream = stream_of(clock, ScriptedFeed("a"))
    await stream.next_chunk()
    for number in (1, 2, 3):
        assert await stream.next_chunk() == b": ping\n\n"
        assert clock.now == pytest.approx(1000.0 + number * client_stream.HEARTBEAT_SECONDS)


async def test_a_feed_is_collected_when_it_wakes_and_when_its_time_comes() -> None:
    clock = Clock()
    waking, periodic = ScriptedFeed("a"), ScriptedFeed("b", period=10.0)
    stream = stream_of(clock, waking, periodic)
    await stream.next_chunk()
    await stream.next_chunk()
    assert (waking.collected, periodic.collected) == (1, 2)
    waking.batches.append([event(5)])
    waking.wake()
    found, _ = await events_of(stream, 1)
    assert found[0].data == {"number": 5}


async def test_changes_that_follow_one_another_are_collected_together() -> None:
    clock = Clock()
    feed = ScriptedFeed("a", [event(1)], pause=0.5)
    stream = stream_of(clock, feed)
    await events_of(stream, 1)
    collected, began = feed.collected, clock.now
    for _ in range(10):
        feed.wake()
    feed.batches.append([event(2)])
    await events_of(stream, 1)
    assert feed.collected == collected + 1
    assert clock.now >= began + 0.4


async def test_after_an_hour_the_client_opens_another_one() -> None:
    clock = Clock()
    found, _ = await events_of(stream_of(clock, ScriptedFeed("a")))
    assert [(each.type, each.data["reason"]) for each in found] == [("bye", "reconnect")]
    assert clock.now == pytest.approx(1000.0 + client_stream.MAX_SECONDS)


async def test_a_right_that_was_taken_away_ends_the_stream_at_the_next_check() -> None:
    clock = Clock()

    async def refused() -> None:
        if clock.now > 1040:
            raise StreamEnd(ByeReason.unauthorized, "no more")

    found, _ = await events_of(stream_of(clock, ScriptedFeed("a"), confirm=refused))
    assert [each.data["reason"] for each in found] == ["unauthorized"]
    assert clock.now == pytest.approx(1060.0)


async def test_an_api_server_that_is_away_ends_the_stream_after_some_checks() -> None:
    clock = Clock()

    async def away() -> None:
        raise ProblemError.of(503, "StorageServerUnavailable", "away")

    found, _ = await events_of(stream_of(clock, ScriptedFeed("a"), confirm=away))
    assert [each.data["reason"] for each in found] == ["unavailable"]
    assert clock.now - 1000 > client_stream.MAX_UNCHECKED_SECONDS


async def test_a_client_that_takes_events_too_slowly_is_told() -> None:
    clock = Clock()
    stream = stream_of(clock, ScriptedFeed("a", [event(1), event(2)]))
    await events_of(stream, 1)
    clock.now += client_stream.SLOW_SECONDS + 1
    found, _ = await events_of(stream)
    assert [each.data["reason"] for each in found] == ["slow"]


async def test_a_feed_that_fails_is_collected_again_later() -> None:
    clock = Clock()
    feed = ScriptedFeed("a", RestError(503, "S3Unreachable", "away"), [event(1)])
    found, _ = await events_of(stream_of(clock, feed), 1)
    assert found[0].data == {"number": 1}
    assert clock.now == pytest.approx(1000.0 + client_stream.RETRY_SECONDS, abs=0.1)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RestError(403, "AccessForbidden", "no"), "unauthorized"),
        (StreamEnd(ByeReason.deleted, "gone"), "deleted"),
        (RuntimeError("with a secret"), "reconnect"),
    ],
)
async def test_a_feed_that_cannot_go_on_ends_the_stream(error: Exception, reason: str) -> None:
    found, _ = await events_of(stream_of(Clock(), ScriptedFeed("a", error)))
    assert [each.data["reason"] for each in found] == [reason]
    assert "secret" not in found[0].data["detail"]


async def test_the_end_of_the_server_ends_a_stream_before_what_waits() -> None:
    stream = stream_of(Clock(), ScriptedFeed("a", [event(1), event(2), event(3)]))
    await events_of(stream, 1)
    stream.end(ByeReason.reconnect, "the server ends")
    found, _ = await events_of(stream)
    assert [each.type for each in found] == ["bye"]
    assert await stream.next_chunk() is None


async def test_a_closed_stream_leaves_nothing() -> None:
    feed = ScriptedFeed("a")
    stream = stream_of(Clock(), feed)
    await stream.next_chunk()
    stream.close()
    assert feed.is_closed
