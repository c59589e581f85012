"""Servers of probes and metrics."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from rlrun.service.listening import MAX_CONNECTIONS
from rlrun.service.server import ShortRequestsRunner, listen_on

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=b"x" * 1_000_000)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = ShortRequestsRunner(app)
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
