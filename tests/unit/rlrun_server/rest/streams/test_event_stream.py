"""Streams over real connections: clients that leave or take nothing, and the end of the server."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import pytest
from rlrun.service.listening import listen
from rlrun_server.http import connection
from rlrun_server.http.serving import serving_on
from rlrun_server.rest.streams.client_stream import ClientStream
from rlrun_server.rest.streams.event_stream import EventStream
from rlrun_server.rest.streams.feed import StreamEvent
from rlrun_server.rest.streams.stream_models import ByeReason
from starlette.types import Receive, Scope, Send

from tests.unit.rlrun_server.rest.streams.test_client_stream import Clock, ScriptedFeed, allowed

DEADLINE = 60.0
REQUEST = b"GET / HTTP/1.1\r\nHost: server\r\n\r\n"
LARGE = StreamEvent("status", b'"' + b"x" * 500_000 + b'"', "1")


class World:
    """Streams of one server."""

    def __init__(self, make_feed: Callable[[], ScriptedFeed]) -> None:
        self._make_feed = make_feed
        self.stream: ClientStream | None = None
        self.has_ended = asyncio.Event()
        self.port = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        clock = Clock()
        self.stream = ClientStream([self._make_feed()], allowed, clock)
        await EventStream(self.stream, self.has_ended.set)(scope, receive, send)


@contextlib.asynccontextmanager
async def served(make_feed: Callable[[], ScriptedFeed]) -> AsyncIterator[World]:
    world = World(make_feed)
    sockets = listen("127.0.0.1", 0)
    world.port = int(sockets[0].getsockname()[1])
    async with asyncio.timeout(DEADLINE), serving_on(world, sockets):
        yield world


async def test_a_client_that_leaves_ends_its_stream() -> None:
    async with served(lambda: ScriptedFeed("a")) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(REQUEST)
        assert b"text/event-stream" in await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await world.has_ended.wait()


async def test_a_stream_whose_client_takes_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "TAKE_SECONDS", 0.2)
    async with served(lambda: ScriptedFeed("a", [LARGE] * 100)) as world:
        stuck = socket.socket()
        with stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(stuck, ("127.0.0.1", world.port))
            await loop.sock_sendall(stuck, REQUEST)
            await world.has_ended.wait()
            with contextlib.suppress(ConnectionResetError):
                while await loop.sock_recv(stuck, 65536):
                    pass


async def test_the_end_of_the_server_says_bye() -> None:
    async with served(lambda: ScriptedFeed("a")) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(REQUEST)
        await reader.readuntil(b"\r\n\r\n")
        assert world.stream is not None
        world.stream.end(ByeReason.reconnect, "rlrun-server ends")
        rest = await reader.readuntil(b"0\r\n\r\n")
        assert b"event: bye\ndata: " in rest
        writer.close()
    assert world.has_ended.is_set()
