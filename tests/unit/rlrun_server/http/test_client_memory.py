"""Memory that clients hold by bodies that they send slowly, and by answers that they do not take."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import FastAPI
from rlrun.protocol.storage_access import SIGN_PATH
from rlrun.service.listening import listen
from rlrun_server.app import server_app
from rlrun_server.http import connection as connection_module
from rlrun_server.http.body import read_body
from rlrun_server.http.client_memory import ByteBudget, ClientMemory, WithMemory
from rlrun_server.http.connection_limits import ConnectionLimits
from rlrun_server.http.endpoint import Endpoint
from rlrun_server.http.serving import serving_on
from rlrun_server.rest.rest_app import Guard
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tests.support.waiting import until

MIB = 1024**2
ANSWER = bytes(range(256)) * (6 * MIB // 256)


async def answer(request: Request) -> Response:
    request.state.limited_as = request.query_params.get("user", "")
    return Response(ANSWER, media_type="application/octet-stream")


async def body(request: Request) -> Response:
    request.state.limited_as = request.query_params.get("user", "")
    return PlainTextResponse(str(len(await read_body(request, MIB))))


@pytest.fixture
def memory() -> ClientMemory:
    return ClientMemory(ByteBudget(MIB, MIB // 2), ByteBudget(25 * MIB, 13 * MIB))


@dataclass
class Clock:
    """Time of a test."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def port(memory: ClientMemory, clock: Clock) -> AsyncIterator[int]:
    routes = [Route("/answer", answer), Route("/body", Endpoint(body), methods=["POST"])]
    app = Starlette(routes=routes, middleware=[Middleware(Guard)])
    sockets = listen("127.0.0.1", 0)
    async with serving_on(WithMemory(app, memory), sockets, drain_seconds=1, limits=ConnectionLimits(now=clock)):
        yield int(sockets[0].getsockname()[1])


@contextlib.contextmanager
def connection(port: int, text: str) -> Iterator[socket.socket]:
    """A connection that has sent a text, and takes nothing by itself."""
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        found.connect(("127.0.0.1", port))
        found.sendall(text.encode())
        found.setblocking(False)
        yield found


def asked(user: str) -> str:
    return f"GET /answer?user={user} HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def read_all(port: int, text: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1).encode())
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_answers_that_are_not_taken_are_limited(port: int, memory: ClientMemory) -> None:
    with connection(port, asked("ann")):
        with connection(port, asked("ann")):
            await until(lambda: memory.answers.held == 2 * len(ANSWER))
            refused = await read_all(port, asked("ann"))
            assert refused.startswith(b"HTTP/1.1 503")
            assert b"problem+json" in refused
            assert b"nosniff" in refused
            assert b"etry-after" in refused.lower()
            # Another user has room, and what is read in time is whole.
            assert (await read_all(port, asked("bob"))).endswith(b"\r\n\r\n" + ANSWER)
            assert memory.answers.held == 2 * len(ANSWER)
        await until(lambda: memory.answers.held == len(ANSWER))
        assert (await read_all(port, asked("ann"))).endswith(ANSWER)
    await until(lambda: memory.answers.held == 0)


async def test_all_users_together_are_limited(port: int, memory: ClientMemory) -> None:
    with contextlib.ExitStack() as stack:
        for user in ("ann", "bob", "cid", "dan"):
            stack.enter_context(connection(port, asked(user)))
        await until(lambda: memory.answers.held == 4 * len(ANSWER))
        assert (await read_all(port, asked("eve"))).startswith(b"HTTP/1.1 503")


async def test_an_answer_that_is_not_taken_makes_room_for_another(
    port: int, memory: ClientMemory, clock: Clock
) -> None:
    with contextlib.ExitStack() as stack:
        for user in ("ann", "bob", "cid", "dan"):
            stack.enter_context(connection(port, asked(user)))
        await until(lambda: memory.answers.held == 4 * len(ANSWER))
        clock.now += 10
        assert (await read_all(port, asked("eve"))).endswith(ANSWER)
        await until(lambda: memory.answers.held == 3 * len(ANSWER))


async def test_a_client_at_its_share_loses_its_own_slowest_answer(
    port: int, memory: ClientMemory, clock: Clock
) -> None:
    with connection(port, asked("bob")) as of_bob, connection(port, asked("ann")), connection(port, asked("ann")):
        await until(lambda: memory.answers.held == 3 * len(ANSWER))
        clock.now += 10
        assert (await read_all(port, asked("ann"))).endswith(ANSWER)
        await until(lambda: memory.answers.held == 2 * len(ANSWER))
        assert b"200 OK" in of_bob.recv(4096)


async def test_a_client_that_takes_nothing_is_cut(
    port: int, memory: ClientMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "TAKE_SECONDS", 0.2)
    with connection(port, asked("ann")):
        await until(lambda: memory.answers.held > 0)
        await until(lambda: memory.answers.held == 0)


async def test_bodies_that_arrive_slowly_are_limited(port: int, memory: ClientMemory) -> None:
    size = 200_000
    head = f"POST /body?user={{}} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
    slow = head.format("ann") + (size - 1) * "x"
    with connection(port, slow), connection(port, slow):
        await until(lambda: memory.bodies.held > 2 * 180_000)
        refused = await read_all(port, head.format("ann") + size * "x")
        assert refused.startswith(b"HTTP/1.1 503")
        small = head.replace(str(size), "5").format("ann")
        assert (await read_all(port, small + "small")).endswith(b"5")
        assert (await read_all(port, head.format("bob") + size * "x")).endswith(b"200000")
    await until(lambda: memory.bodies.held == 0)


async def test_bodies_of_signatures_are_limited_before_anything_is_known_of_their_sender() -> None:
    none: Any = None
    size = 256 * 1024
    head = f"POST {SIGN_PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\nContent-Length: {size}\r\n\r\n"
    text = head + (size - 1) * "x"
    sockets = listen("127.0.0.1", 0)
    async with serving_on(server_app(none, none, none, FastAPI()), sockets, drain_seconds=1):
        port = int(sockets[0].getsockname()[1])
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        for _, writer in connections:
            writer.write(text.encode())
        answers = [asyncio.create_task(reader.read(12)) for reader, _ in connections]
        done, _ = await asyncio.wait(answers, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result() for task in done} == {b"HTTP/1.1 503"}
        for task in answers:
            task.cancel()
        for _, writer in connections:
            writer.close()
