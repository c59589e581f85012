"""The egress proxy before the proxy of a company, with real TLS connections."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rlrun.api.base.address_rules import AddressRules
from rlrun.api.base.proxy_rules import ProxyRules
from rlrun.protocol.egress import EgressGrant, sign
from rlrun_egress_proxy.proxy import EgressProxy, _Activity, _copy
from rlrun_egress_proxy.settings import EgressConfig, EgressProxySettings

from tests.support.company_network import HUB, TEACHER, CompanyNetwork, company_network

KEY = b"k" * 32
INTERNAL = "hub.models.svc"
Resolve = Callable[[str, int], Awaitable[list[str]]]
Ask = Callable[..., Awaitable[str]]


async def unknown(host: str, port: int) -> list[str]:
    raise OSError(f"{host} is not known")


def known(*addresses: str) -> Resolve:
    async def resolve(host: str, port: int) -> list[str]:
        return [*addresses]

    return resolve


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[CompanyNetwork]:
    async with company_network(tmp_path) as made:
        yield made


@asynccontextmanager
async def egress(
    network: CompanyNetwork, folder: Path, resolve: Resolve, *, private: tuple[str, ...] = (), direct: str = ""
) -> AsyncIterator[Ask]:
    """Start the egress proxy. Yields a client that returns the first line of the last answer."""
    (folder / "key").write_bytes(KEY)
    proxies = ProxyRules.of_environment({"HTTPS_PROXY": network.proxy, "NO_PROXY": direct})
    settings = EgressProxySettings(keys=folder, connect_deadline=5)
    proxy = EgressProxy(EgressConfig(settings, AddressRules.parse(private), proxies), resolve)
    grant = EgressGrant(
        namespace="team", run="judged", uid="u", environment="env-0", hosts=[TEACHER, HUB, INTERNAL, "10.0.0.1"],
        expires=datetime.now(UTC) + timedelta(hours=1),
    )  # fmt: skip
    credentials = base64.b64encode(f"rlrun:{sign(grant, KEY)}".encode()).decode()
    context = ssl.create_default_context(cadata=network.certificates)

    async def ask(host: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        writer.write(f"CONNECT {host}:443 HTTP/1.1\r\nProxy-Authorization: Basic {credentials}\r\n\r\n".encode())
        line = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[0]
        if " 200 " in line:
            await writer.start_tls(context, server_hostname=host)
            writer.write(f"POST /score HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n".encode())
            line = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[0]
        writer.close()
        return line

    server = await asyncio.start_server(proxy.serve_client, "127.0.0.1", limit=16 * 1024)
    try:
        yield ask
    finally:
        server.close()


@pytest.mark.parametrize("resolve", [unknown, known("93.184.216.34")], ids=["unknown here", "resolved"])
async def test_a_listed_host_is_reached_through_the_proxy(
    network: CompanyNetwork, tmp_path: Path, resolve: Resolve
) -> None:
    async with egress(network, tmp_path, resolve) as ask:
        assert await ask(TEACHER) == "HTTP/1.1 200 OK"
    assert (network.connections, network.requests) == ([f"{TEACHER}:443"], [f"POST {TEACHER}/score"])


@pytest.mark.parametrize(
    ("host", "resolve"),
    [
        (TEACHER, known("10.0.0.1")),
        (TEACHER, known("93.184.216.34", "10.0.0.1")),
        (TEACHER, known("169.254.169.254")),
        (INTERNAL, unknown),
        ("10.0.0.1", unknown),
    ],
)
async def test_addresses_that_are_known_to_be_private_are_refused(
    network: CompanyNetwork, tmp_path: Path, host: str, resolve: Resolve
) -> None:
    async with egress(network, tmp_path, resolve) as ask:
        assert await ask(host) == "HTTP/1.1 403 Forbidden"
    assert network.connections == []


async def test_what_the_proxy_refuses_is_not_reached(network: CompanyNetwork, tmp_path: Path) -> None:
    async with egress(network, tmp_path, unknown, private=(INTERNAL,)) as ask:
        assert await ask(INTERNAL) == "HTTP/1.1 502 Bad Gateway"
    assert network.connections == [f"{INTERNAL}:443"]


async def test_hosts_of_no_proxy_are_resolved_and_reached_directly(network: CompanyNetwork, tmp_path: Path) -> None:
    async with egress(network, tmp_path, unknown, direct=".company.test") as ask:
        assert await ask(TEACHER) == "HTTP/1.1 502 Bad Gateway"
    assert network.connections == []


async def test_a_client_that_has_gone_ends_its_tunnel_through_a_proxy_with_tls(
    network: CompanyNetwork, tmp_path: Path
) -> None:
    """TLS knows no end of one direction, and the server keeps the connection open for the next request."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()
        writer.close()

    pair = network.authority.issue("proxy", "proxy", addresses=["localhost"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    trusted = ssl.create_default_context(cadata=network.certificates)
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("localhost", port, ssl=trusted)
        client = asyncio.StreamReader()
        client.feed_eof()
        await _copy(client, writer, _Activity(0.0, 0))
        async with asyncio.timeout(60):
            await ended.wait()


async def test_a_proxy_that_ends_the_connection_opens_nothing(network: CompanyNetwork, tmp_path: Path) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 200")
        writer.close()

    async with await asyncio.start_server(broken, "127.0.0.1", 0) as server:
        network.proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with egress(network, tmp_path, unknown) as ask:
            assert await ask(TEACHER) == "HTTP/1.1 502 Bad Gateway"
