"""Servers with and without TLS."""

import asyncio
import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web
from rlrun.service.server import healthz, serving
from rlrun_operator.runtime.server_certificate import make_certificate

ANOTHER = "127.0.0.2"
"""An address of this host that is not the one on which the plain port is open."""


@pytest.fixture
def ports() -> tuple[int, int]:
    """Two free ports."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("", 0))
        two.bind(("", 0))
        return one.getsockname()[1], two.getsockname()[1]


@pytest.fixture
def application() -> web.Application:
    app = web.Application()
    app.router.add_get("/healthz", healthz)
    return app


async def answers(address: str, port: int, context: ssl.SSLContext | None = None) -> bool:
    try:
        name = "localhost" if context else None
        reader, writer = await asyncio.open_connection(address, port, ssl=context, server_hostname=name)
    except ConnectionRefusedError:
        return False
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    text = await reader.read()
    writer.close()
    return b"200 OK" in text


async def test_with_tls_the_plain_port_is_for_this_host_alone(
    application: web.Application, ports: tuple[int, int], tmp_path: Path
) -> None:
    plain, encrypted = ports
    made = make_certificate("localhost", datetime.now(UTC))
    for name, content in made.items():
        (tmp_path / name).write_bytes(content)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    client = ssl.create_default_context(cadata=made["ca.crt"].decode())
    async with serving(application, plain, encrypted, tls):
        assert await answers("127.0.0.1", plain)
        assert not await answers(ANOTHER, plain)
        assert await answers(ANOTHER, encrypted, client)
    async with serving(application, plain):
        assert await answers(ANOTHER, plain)
        assert not await answers(ANOTHER, encrypted, client)
