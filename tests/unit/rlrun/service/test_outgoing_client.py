"""Requests to URLs of users, on servers that a user's server would like to reach through the client.

The servers listen on several loopback addresses: those that a test lists stand for the internet, the others for what
is inside the cluster.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from rlrun.api.base.address_rules import INTERNET_ONLY, AddressRules
from rlrun.api.base.proxy_rules import NO_PROXIES, ProxyRules
from rlrun.service.errors import RequestError, RequestRejected, ServiceUnavailable
from rlrun.service.outgoing_client import AddressRefused, OutgoingClient

from tests.support.ports import claimed_ports

OUTSIDE, INSIDE = "127.0.0.1", "127.0.0.2"
HIDDEN = "the answer of an internal server"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Servers:
    """A server of a user at OUTSIDE, and one at INSIDE that no user may call, both on one port."""

    port: int
    answer: Handler | None = None
    """What the user's server does. None: it answers `fine`."""
    calls: list[str] = field(default_factory=list)
    """Addresses of the servers that were called."""

    def url(self, host: str = OUTSIDE) -> str:
        return f"http://{host}:{self.port}/v1"

    async def outside(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(OUTSIDE)
        return await self.answer(request) if self.answer else web.Response(text="fine", headers={"Connection": "close"})

    async def inside(self, _: web.Request) -> web.StreamResponse:
        self.calls.append(INSIDE)
        return web.Response(text=HIDDEN)


@dataclass
class FixedResolver(AbstractResolver):
    """DNS server of a user: one answer per lookup, the last one for all later lookups."""

    answers: list[list[str]]
    lookups: int = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if not self.answers:
            raise OSError(f"{host} is not known")
        found = self.answers[min(self.lookups, len(self.answers) - 1)]
        self.lookups += 1
        return [
            ResolveResult(hostname=host, host=one, port=port, family=socket.AF_INET, proto=0, flags=0) for one in found
        ]

    async def close(self) -> None:
        pass


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    runners = []
    with claimed_ports(1) as (port,):
        made = Servers(port)
        for address, handler in ((OUTSIDE, made.outside), (INSIDE, made.inside)):
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", handler)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            runners.append(runner)
            await runner.setup()
            await web.TCPSite(runner, address, port).start()
        yield made
        for runner in runners:
            await runner.cleanup()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., OutgoingClient]]:
    """Makes clients of an installation that opens OUTSIDE, with a DNS server of the user."""
    clients = []

    def make(
        *answers: list[str], rules: AddressRules | None = None, proxies: ProxyRules = NO_PROXIES
    ) -> OutgoingClient:
        resolver = FixedResolver(list(answers))
        rules = AddressRules.parse([OUTSIDE]) if rules is None else rules
        clients.append(OutgoingClient(rules, lambda: resolver, proxies))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


Connect = Callable[..., OutgoingClient]


async def test_body_is_sent_as_json_and_the_answer_returned(servers: Servers, connect: Connect) -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        assert request.content_type == "application/json"
        return web.Response(body=await request.read())

    servers.answer = echo
    assert await connect().post(servers.url(), b'{"a": 1}', timeout=30) == b'{"a": 1}'


async def test_no_more_of_an_answer_is_read_than_its_limit(servers: Servers, connect: Connect) -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        return web.Response(body=await request.read())

    servers.answer = echo
    assert await connect().post(servers.url(), b"x" * 100, timeout=30, max_bytes=100) == b"x" * 100
    with pytest.raises(RequestRejected, match="larger than 99 bytes"):
        await connect().post(servers.url(), b"x" * 100, timeout=30, max_bytes=99)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("target", [INSIDE, "169.254.169.254", "kubernetes.default.svc"])
async def test_redirects_are_not_followed(servers: Servers, connect: Connect, status: int, target: str) -> None:
    async def redirect(_: web.Request) -> web.StreamResponse:
        location = f"http://{target}:{servers.port}/{HIDDEN}"
        return web.Response(status=status, headers={"Location": location}, text=HIDDEN)

    servers.answer = redirect
    with pytest.raises(RequestRejected) as caught:
        await connect([INSIDE]).post(servers.url(), b"{}", timeout=30)
    assert servers.calls == [OUTSIDE]
    assert caught.value.status == status
    message = caught.value.problem.message
    assert f"a redirect to {target}. " in message
    assert "use the final URL" in message
    assert HIDDEN not in message


@pytest.mark.parametrize("location", ["", "http://[", f"http://{HIDDEN}/", f"http://{'a' * 300}/", 'http://a"b/'])
async def test_a_redirect_quotes_nothing_but_a_host(servers: Servers, connect: Connect, location: str) -> None:
    async def redirect(_: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": location})

    servers.answer = redirect
    with pytest.raises(RequestRejected) as caught:
        await connect().post(servers.url(), b"{}", timeout=30)
    assert HIDDEN not in caught.value.problem.message
    assert len(caught.value.problem.message) < 200


@pytest.mark.parametrize("host", [INSIDE, "[::ffff:127.0.0.2]", "10.0.0.1", "169.254.169.254", "[fe80::1]"])
async def test_addresses_in_the_url_are_checked(servers: Servers, connect: Connect, host: str) -> None:
    with pytest.raises(AddressRefused):
        await connect().post(servers.url(host), b"{}", timeout=30)
    assert servers.calls == []


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "file:///etc/passwd", "http://[/", "http:///v1", "http://127.1/"])
async def test_urls_that_lead_nowhere_are_refused(connect: Connect, url: str) -> None:
    with pytest.raises(AddressRefused):
        await connect([OUTSIDE]).post(url, b"{}", timeout=30)


async def test_a_name_is_checked_by_its_addresses(servers: Servers, connect: Connect) -> None:
    with pytest.raises(AddressRefused) as caught:
        await connect([INSIDE]).post(servers.url("teacher.example.com"), b"{}", timeout=30)
    assert caught.value.problem.reason == "AddressNotAllowed"
    assert f"teacher.example.com has the address {INSIDE}" in caught.value.problem.message
    assert servers.calls == []


async def test_of_several_addresses_only_the_allowed_ones_are_used(servers: Servers, connect: Connect) -> None:
    url = servers.url("teacher.example.com")
    assert await connect([INSIDE, OUTSIDE]).post(url, b"{}", timeout=30) == b"fine"
    assert servers.calls == [OUTSIDE]


async def test_a_name_that_changes_its_address_leads_no_further(servers: Servers, connect: Connect) -> None:
    client, url = connect([OUTSIDE], [INSIDE]), servers.url("rebind.example.com")
    assert await client.post(url, b"{}", timeout=30) == b"fine", "one lookup: its answer is checked and connected to"
    with pytest.raises(AddressRefused):
        await client.post(url, b"{}", timeout=30)
    assert servers.calls == [OUTSIDE]


async def test_a_name_without_addresses_is_unreachable(connect: Connect) -> None:
    with pytest.raises(ServiceUnavailable):
        await connect([]).post("http://teacher.example.com/", b"{}", timeout=30)


@pytest.mark.parametrize(
    ("status", "error_class", "text"),
    [
        (400, RequestRejected, "responded with 400 (Bad Request)"),
        (403, RequestRejected, "responded with 403 (Forbidden)"),
        (500, RequestRejected, "responded with 500 (Internal Server Error)"),
        (503, ServiceUnavailable, "responded with 503 (Service Unavailable)"),
        (599, RequestRejected, "responded with 599"),
    ],
)
async def test_errors_contain_nothing_that_the_server_sent(
    servers: Servers, connect: Connect, status: int, error_class: type[RequestError], text: str
) -> None:
    async def fail(_: web.Request) -> web.StreamResponse:
        problem = f'{{"reason": "Hidden", "message": "{HIDDEN}"}}'
        return web.Response(status=status, reason=HIDDEN, text=problem, headers={"X-Hidden": HIDDEN})

    servers.answer = fail
    with pytest.raises(error_class) as caught:
        await connect().post(servers.url(), b"{}", timeout=30)
    assert caught.value.status == status
    assert caught.value.problem.reason == f"HTTP{status}"
    assert text in caught.value.problem.message
    assert HIDDEN not in str(caught.value)


async def test_errors_quote_no_server_that_speaks_another_protocol(connect: Connect) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{HIDDEN}\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    with claimed_ports(1) as (port,):
        server = await asyncio.start_server(greet, OUTSIDE, port)
        async with server:
            with pytest.raises(ServiceUnavailable) as caught:
                await connect().post(f"http://{OUTSIDE}:{port}/", b"{}", timeout=30)
    assert HIDDEN not in caught.value.problem.message


def proxied(servers: Servers, *direct: str) -> ProxyRules:
    """Rules whose proxy is the server inside, which no user may name."""
    return ProxyRules(http=f"http://{INSIDE}:{servers.port}", direct=direct)


@pytest.mark.parametrize("answers", [[["93.184.216.34"]], []], ids=["resolved", "unknown here"])
async def test_a_proxy_reaches_what_this_process_may_not_resolve(
    servers: Servers, connect: Connect, answers: list[list[str]]
) -> None:
    client = connect(*answers, rules=INTERNET_ONLY, proxies=proxied(servers))
    assert await client.post("http://teacher.example.com/v1", b"{}", timeout=30) == HIDDEN.encode()
    assert servers.calls == [INSIDE]


@pytest.mark.parametrize(
    ("url", "answers"),
    [
        ("http://10.0.0.1/v1", []),
        ("http://169.254.169.254/v1", []),
        ("http://kubernetes.default.svc/v1", []),
        ("http://rebound.example.com/v1", [["10.0.0.1"]]),
        ("http://half.example.com/v1", [["93.184.216.34", "10.0.0.1"]]),
        ("http://metadata.example.com/v1", [["169.254.169.254"]]),
    ],
)
async def test_a_proxy_is_not_asked_for_addresses_that_runs_must_not_name(
    servers: Servers, connect: Connect, url: str, answers: list[list[str]]
) -> None:
    client = connect(*answers, rules=INTERNET_ONLY, proxies=proxied(servers))
    with pytest.raises(AddressRefused):
        await client.post(url, b"{}", timeout=30)
    assert servers.calls == []


async def test_a_host_in_a_network_of_no_proxy_is_reached_directly_and_checked(
    servers: Servers, connect: Connect
) -> None:
    client = connect(proxies=proxied(servers, "127.0.0.1/32"))
    assert await client.post(servers.url(), b"{}", timeout=30) == b"fine"
    with pytest.raises(AddressRefused):
        await connect(proxies=proxied(servers, "127.0.0.0/8")).post(servers.url(INSIDE), b"{}", timeout=30)
    assert servers.calls == [OUTSIDE]
