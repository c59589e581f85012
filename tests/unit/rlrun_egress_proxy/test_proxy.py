"""The proxy between real TLS clients and real TLS servers on this machine."""

import asyncio
import base64
import socket
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rlrun.api.base.address_rules import AddressRules
from rlrun.protocol.egress import EgressGrant, sign
from rlrun_egress_proxy import proxy as proxy_module
from rlrun_egress_proxy.client_hello import server_name
from rlrun_egress_proxy.metrics import BYTES, REGISTRY, TUNNELS
from rlrun_egress_proxy.name_lookups import LOOKUPS_PER_NAMESPACE, LOOKUPS_PER_RUN
from rlrun_egress_proxy.proxy import EgressProxy
from rlrun_egress_proxy.settings import EgressConfig, EgressProxySettings

from local_cluster.control_plane.pki import CertificateAuthority
from tests.support.waiting import until
from tests.unit.rlrun_egress_proxy.test_client_hello import hello

KEY = b"k" * 32
JUDGE = "judge.example.com"
Resolve = Callable[[str, int], Awaitable[list[str]]]


@dataclass
class World:
    """A judge behind TLS, the proxy, and what clients need."""

    port: int
    """Port of the judge."""
    proxy_port: int
    context: ssl.SSLContext
    proxy: EgressProxy
    seen: list[bytes]

    def grant(self, **changes: object) -> str:
        grant = EgressGrant(
            namespace="team",
            run="judged",
            uid="u",
            environment="env-0",
            hosts=[f"{JUDGE}:{self.port}"],
            expires=datetime.now(UTC) + timedelta(hours=1),
        )
        return sign(grant.model_copy(update=changes), KEY)

    def request(self, host: str = JUDGE, port: int | None = None, grant: str | None = None) -> bytes:
        """Return a CONNECT request."""
        credentials = base64.b64encode(f"rlrun:{grant or self.grant()}".encode()).decode()
        target = f"{host}:{port or self.port}"
        return f"CONNECT {target} HTTP/1.1\r\nProxy-Authorization: Basic {credentials}\r\n\r\n".encode()

    async def connect(
        self, host: str = JUDGE, port: int | None = None, grant: str | None = None
    ) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
        """Send CONNECT. Returns the status line and the open connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy_port)
        writer.write(self.request(host, port, grant))
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        return answer.splitlines()[0], reader, writer

    async def ask(self, name: str = JUDGE) -> bytes:
        """Return the judge's answer to one line over TLS."""
        line, reader, writer = await self.connect()
        assert line == "HTTP/1.1 200 Connection established", await reader.read()
        await writer.start_tls(self.context, server_hostname=name)
        writer.write(b"score?\n")
        answer = await reader.readline()
        writer.close()
        return answer


async def loopback(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[World]]]:
    pair = CertificateAuthority(tmp_path / "pki").issue("judge", "judge", addresses=[JUDGE])
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(pair.certificate, pair.key)
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "key").write_bytes(KEY)
    servers: list[asyncio.Server] = []

    async def start(
        *, resolve: Resolve | None = loopback, private: tuple[str, ...] = ("127.0.0.1",), **settings: object
    ) -> World:
        seen: list[bytes] = []

        async def judge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            line = await reader.readline()
            seen.append(line)
            writer.write(b"0.5\n")
            await writer.drain()
            writer.close()

        upstream = await asyncio.start_server(judge, "127.0.0.1", ssl=serving)
        config = EgressConfig(
            EgressProxySettings.model_validate({"keys": tmp_path / "keys", **settings}), AddressRules.parse(private)
        )
        proxy = EgressProxy(config, resolve)
        door = await asyncio.start_server(proxy.serve_client, "127.0.0.1", limit=16 * 1024)
        servers.extend((upstream, door))
        context = ssl.create_default_context(cafile=str(tmp_path / "pki" / "ca.crt"))
        ports = [server.sockets[0].getsockname()[1] for server in (upstream, door)]
        return World(*ports, context, proxy, seen)

    yield start
    for server in servers:
        server.close()


Make = Callable[..., Awaitable[World]]


async def test_an_environment_reaches_its_listed_host_over_tls(make: Make) -> None:
    world = await make()
    assert await world.ask() == b"0.5\n"
    assert world.seen == [b"score?\n"]


async def test_metrics_name_a_namespace_only_if_the_platform_wants_it(make: Make) -> None:
    def names() -> set[str]:
        return {s.labels["namespace"] for m in (TUNNELS, BYTES) for family in m.collect() for s in family.samples}

    for metric in (TUNNELS, BYTES):
        metric.clear()
    for wanted in (False, True):
        world = await make(metrics_with_tenants=wanted)
        await world.ask()
        label = "team" if wanted else ""
        await until(lambda: label in names())  # noqa: B023
        assert ("team" in names()) is wanted


async def test_another_host_or_port_is_refused(make: Make) -> None:
    world = await make()
    for host, port in (("other.example.com", world.port), (JUDGE, world.port + 1), ("169.254.169.254", world.port)):
        line, reader, _ = await world.connect(host, port)
        assert line == "HTTP/1.1 403 Forbidden"
        assert b"not listed in `egress`" in await reader.read()
    assert world.seen == []


@pytest.mark.parametrize(
    "changes",
    [{"expires": datetime(2020, 1, 1, tzinfo=UTC)}, None],
    ids=["expired", "forged"],
)
async def test_a_grant_that_is_not_valid_is_refused(make: Make, changes: dict[str, object] | None) -> None:
    world = await make()
    grant = world.grant(**changes) if changes else world.grant().partition(".")[0] + ".AAAA"
    line, _, _ = await world.connect(grant=grant)
    assert line == "HTTP/1.1 407 Proxy Authentication Required"


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00::1", "::ffff:10.0.0.1"])
async def test_a_listed_name_with_a_private_address_is_refused(make: Make, address: str) -> None:
    async def private(host: str, port: int) -> list[str]:
        return [address]

    world = await make(resolve=private, private=())
    line, _, _ = await world.connect()
    assert line == "HTTP/1.1 403 Forbidden"
    assert world.seen == []


async def test_the_address_that_was_checked_is_used(make: Make) -> None:
    """A name whose address changes between check and connection gains nothing: it is resolved once."""
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])

    async def rebinding(host: str, port: int) -> list[str]:
        return next(answers)

    world = await make(resolve=rebinding)
    assert await world.ask() == b"0.5\n"
    assert list(answers) == [["10.0.0.1"]]


async def test_the_tls_connection_must_be_for_the_same_host(make: Make) -> None:
    world = await make()
    world.context.check_hostname = False
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await world.ask(name="hidden.example.com")
    assert world.seen == []


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nHost: judge\r\n\r\n", b""], ids=["not TLS", "closed"])
async def test_nothing_but_tls_passes(make: Make, data: bytes) -> None:
    world = await make()
    line, reader, writer = await world.connect()
    assert line.startswith("HTTP/1.1 200")
    writer.write(data)
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 60) == b""
    assert world.seen == []


async def test_a_hello_that_arrives_by_the_byte_is_read_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(data: bytes) -> str | None:
        read.append(len(data))
        return server_name(data)

    monkeypatch.setattr(proxy_module, "server_name", counted)
    world = await make()
    line, _, writer = await world.connect()
    assert line.startswith("HTTP/1.1 200")
    data = hello(JUDGE)
    for at in range(len(data)):
        writer.write(data[at : at + 1])
        await asyncio.sleep(0)
    await until(lambda: bool(read) and read[-1] == len(data))
    assert read == [len(data)]


async def test_a_run_has_a_limited_number_of_connections(make: Make) -> None:
    world = await make(tunnelsPerRun=1, connections=100)
    _, _, writer = await world.connect()
    assert REGISTRY.get_sample_value("rlrun_egress_open_tunnels") == 1
    assert REGISTRY.get_sample_value("rlrun_egress_tunnels_limit") == 100
    line, _, _ = await world.connect()
    assert line == "HTTP/1.1 429 Too Many Requests"
    line, _, _ = await world.connect(grant=world.grant(uid="another"))
    assert line.startswith("HTTP/1.1 200")
    writer.close()
    await until(lambda: world.proxy.open_tunnels <= 1)
    line, _, _ = await world.connect()
    assert line.startswith("HTTP/1.1 200")


async def test_one_tenant_cannot_take_all_connections(make: Make) -> None:
    world = await make(tunnelsPerRun=4, connections=4)
    open_ones = [await world.connect(grant=world.grant(uid=uid)) for uid in ("a", "b")]
    line, _, _ = await world.connect(grant=world.grant(uid="c"))
    assert line == "HTTP/1.1 429 Too Many Requests", "half of them are for other namespaces"
    line, _, _ = await world.connect(grant=world.grant(uid="d", namespace="other"))
    assert line.startswith("HTTP/1.1 200")
    for _, _, writer in open_ones:
        writer.close()


async def test_few_namespaces_leave_connections_for_others(make: Make) -> None:
    world = await make(tunnelsPerRun=8, connections=8)
    tunnels = []
    for namespace in ("a", "b", "c"):
        grant = world.grant(namespace=namespace, uid=namespace)
        tunnels += [(namespace, *await world.connect(grant=grant)) for _ in range(5)]
    opened = Counter(namespace for namespace, line, _, _ in tunnels if "200" in line)
    assert opened == {"a": 4, "b": 2, "c": 1}


async def silent(world: World, address: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection that sends nothing."""
    return await asyncio.open_connection("127.0.0.1", world.proxy_port, local_addr=(address, 0))


async def test_connections_beyond_the_limit_are_closed_before_anything_is_read(make: Make) -> None:
    world = await make(connections=2)
    open_ones = [await world.connect(grant=world.grant(uid=name, namespace=name)) for name in ("a", "b")]
    reader, _ = await silent(world)
    assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 503 ")
    for _, _, writer in open_ones:
        writer.close()
    await until(lambda: world.proxy.connections == 0)
    line, _, _ = await world.connect()
    assert line.startswith("HTTP/1.1 200")


async def test_silent_clients_make_room(make: Make) -> None:
    world = await make(connections=8, headDeadline=600)
    kept = [await silent(world, f"127.0.0.{last}") for last in (2, 3, 4, 5) * 2]
    await until(lambda: world.proxy.connections == 8)
    line, _, writer = await world.connect()
    assert line.startswith("HTTP/1.1 200")
    assert await asyncio.wait_for(kept[0][0].read(), 60) == b"", "the oldest one without a grant makes room"
    await until(lambda: world.proxy.connections == 8)
    writer.close()


async def test_silent_clients_of_one_address_make_room_before_others(make: Make) -> None:
    world = await make(connections=8, headDeadline=600)
    other, _ = await silent(world, "127.0.0.2")
    await until(lambda: world.proxy.connections == 1)
    kept = [await silent(world) for _ in range(8)]
    assert await asyncio.wait_for(kept[0][0].read(), 60) == b""
    await until(lambda: world.proxy.connections == 8)
    tunnels = [await world.connect() for _ in range(4)]
    assert {line for line, _, _ in tunnels} == {"HTTP/1.1 200 Connection established"}, "they count for their run"
    assert not other.at_eof()


async def test_an_address_keeps_its_connections_while_there_is_room(make: Make) -> None:
    world = await make(connections=512, tunnelsPerRun=512, headDeadline=600)
    opened = [await silent(world) for _ in range(200)]
    await until(lambda: world.proxy.connections == 200)
    for _, writer in opened:
        writer.write(world.request())
    answers = await asyncio.gather(*(reader.readline() for reader, _ in opened))
    assert set(answers) == {b"HTTP/1.1 200 Connection established\r\n"}


async def test_an_idle_connection_and_a_silent_client_end(make: Make) -> None:
    world = await make(idleDeadline=0.01, headDeadline=0.2)
    line, reader, writer = await world.connect()
    assert line.startswith("HTTP/1.1 200")
    await writer.start_tls(world.context, server_hostname=JUDGE)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    silent, _ = await asyncio.open_connection("127.0.0.1", world.proxy_port)
    assert await asyncio.wait_for(silent.read(), 60) == b""
    await until(lambda: world.proxy.open_tunnels == 0)


async def test_a_host_that_does_not_answer_is_an_error_of_its_own(make: Make) -> None:
    async def unknown(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    world = await make(resolve=unknown)
    line, reader, _ = await world.connect()
    assert line == "HTTP/1.1 502 Bad Gateway"
    assert b"the name could not be resolved" in await reader.read()


async def test_lookups_that_take_long_delay_no_other_tenant(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, asked = threading.Event(), []

    def slow_for_some(host: str, port: int, **_: object) -> list[object]:
        asked.append(host)
        if host.endswith(".slow.example.com"):
            answers.wait()
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", slow_for_some)
    world = await make(resolve=None, connectDeadline=60, tunnelsPerRun=512)
    slow = [
        asyncio.create_task(
            world.connect(
                f"name-{name}.slow.example.com",
                443,
                world.grant(hosts=["*.slow.example.com"], namespace=f"slow-{namespace}", uid=f"{namespace}-{run}"),
            )
        )
        for namespace in range(2)
        for run in range(3)
        for name in range(20)
    ]
    try:
        # Two lookups of two runs each have their share when the next run gets none.
        await until(lambda: len(asked) >= 2 * LOOKUPS_PER_NAMESPACE)
        async with asyncio.timeout(60):
            assert await world.ask() == b"0.5\n"
        assert len(asked) == 2 * LOOKUPS_PER_NAMESPACE + 1
        assert not any(task.done() for task in slow)
    finally:
        answers.set()
    async with asyncio.timeout(60):
        assert {line for line, _, _ in await asyncio.gather(*slow)} == {"HTTP/1.1 502 Bad Gateway"}
    assert len(asked) == len(slow) + 1, "each has had its turn"


async def test_a_lookup_that_nobody_waits_for_counts_until_it_ends(make: Make) -> None:
    ended, asked = asyncio.Event(), []

    async def endless(host: str, port: int) -> list[str]:
        asked.append(host)
        await ended.wait()
        return ["127.0.0.1"]

    world = await make(resolve=endless, connectDeadline=0.05)
    lines = []
    for name in range(LOOKUPS_PER_RUN + 2):
        line, _, _ = await world.connect(f"name-{name}.example.com", 443, world.grant(hosts=["*.example.com"]))
        lines.append(line)
    assert lines == ["HTTP/1.1 502 Bad Gateway"] * len(lines)
    assert len(asked) == LOOKUPS_PER_RUN
    ended.set()


async def test_connections_of_a_run_to_one_host_wait_for_one_lookup(make: Make) -> None:
    asked = []

    async def counted(host: str, port: int) -> list[str]:
        asked.append(host)
        await asyncio.sleep(0.05)
        return ["127.0.0.1"]

    world = await make(resolve=counted)
    assert await asyncio.gather(*(world.ask() for _ in range(10))) == [b"0.5\n"] * 10
    assert len(asked) < 10


async def test_a_head_without_an_end_is_refused(make: Make) -> None:
    world = await make()
    reader, writer = await asyncio.open_connection("127.0.0.1", world.proxy_port)
    writer.write(b"CONNECT " + b"x" * 40_000)
    assert (await reader.readline()).startswith(b"HTTP/1.1 431 ")
