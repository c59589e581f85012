"""Servers of probes and metrics."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession, TCPConnector, web
from rlrun.protocol.problem import Problem
from rlrun.service import server
from rlrun.service.listening import MAX_CONNECTIONS
from rlrun.service.server import LimitedRunner, json_response, listen_on, problem_middleware, read_model

ROOT = Path(__file__).parents[4]
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=b"x" * 1_000_000)

    async def step(request: web.Request) -> web.Response:
        await asyncio.sleep(float(await request.text()))
        return web.Response(text="done")

    async def order(request: web.Request) -> web.Response:
        return json_response(await read_model(request, Problem))

    app = web.Application(middlewares=[problem_middleware])
    app.router.add_post("/order", order)
    app.router.add_get("/metrics", metrics)
    app.router.add_post("/step", step)
    runner = LimitedRunner(app)
    await runner.setup()
    await listen_on(runner, 0, "127.0.0.1")
    yield int(runner.addresses[0][1])
    await runner.cleanup()


async def connect(port: int, source: str) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    client.bind((source, 0))
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    return client


async def answer(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST.replace(b"localhost", b"localhost\r\nConnection: close"))
    try:
        return await reader.read()
    finally:
        writer.close()


async def is_open(client: socket.socket) -> bool:
    try:
        async with asyncio.timeout(0.05):
            while await asyncio.get_running_loop().sock_recv(client, 65536):
                pass
    except TimeoutError:
        return True
    except ConnectionResetError:
        pass
    return False


@pytest.mark.parametrize("request_bytes", [b"", REQUEST], ids=["silent", "slow-reader"])
async def test_clients_that_hold_connections_keep_no_probe_out(port: int, request_bytes: bytes) -> None:
    async with asyncio.timeout(60):
        with contextlib.ExitStack() as stack:
            few = [stack.enter_context(await connect(port, "127.0.0.3")) for _ in range(2)]
            many = [stack.enter_context(await connect(port, "127.0.0.2")) for _ in range(2 * MAX_CONNECTIONS)]
            for client in many[-MAX_CONNECTIONS + 2 :]:
                await asyncio.get_running_loop().sock_sendall(client, request_bytes)
            assert (await answer(port)).endswith(b"x" * 1_000_000)
            closed = [client for client in many if not await is_open(client)]
            assert len(closed) >= MAX_CONNECTIONS + 2
            assert [await is_open(client) for client in few] == [True, True], "those of another address stay"


async def test_a_request_in_progress_is_kept_while_others_hold_idle_connections(port: int) -> None:
    async with asyncio.timeout(60), ClientSession(connector=TCPConnector(local_addr=("127.0.0.2", 0))) as session:
        with contextlib.ExitStack() as stack:
            async with session.post(f"http://127.0.0.1:{port}/step", data="0") as response:
                await response.read()
            step = asyncio.create_task(session.post(f"http://127.0.0.1:{port}/step", data="3"))
            await asyncio.sleep(0.2)
            for _ in range(2 * MAX_CONNECTIONS):
                stack.enter_context(await connect(port, "127.0.0.2"))
            response = await step
            assert await response.text() == "done"


async def test_a_body_that_does_not_arrive_ends_its_request(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /order HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
    async with asyncio.timeout(30):
        assert b" 408 " in await reader.readline()
    writer.close()


def test_each_server_has_a_limit_of_its_connections() -> None:
    programs = ("core", "operator", "orchestrator_image", "trainer_image")
    made = {
        path.relative_to(ROOT).as_posix()
        for program in programs
        for path in (ROOT / program).rglob("*.py")
        if re.search(r"\b(AppRunner|ServerRunner|run_app|TCPSite)\b|loop\.create_server\(", path.read_text("utf-8"))
    }
    assert made == {"core/rlrun/service/server.py"}, "use rlrun.service.server.LimitedRunner"
