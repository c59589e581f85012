"""Sockets of both families, and of one where the kernel has no other."""

import errno
import resource
import socket
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import ClientSession, web
from rlrun.service import listening
from rlrun.service.listening import OTHER_FILES, allow_connections, listen
from rlrun.service.server import healthz, listen_on, serving

from tests.support.ports import claimed_ports

LOOPBACKS = ("127.0.0.1", "::1")


def url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/healthz"


def application() -> web.Application:
    app = web.Application()
    app.router.add_get("/healthz", healthz)
    return app


async def answers(port: int) -> list[str]:
    """The loopback addresses that answer."""
    found = []
    async with ClientSession() as session:
        for host in LOOPBACKS:
            async with session.get(url(host, port)) as response:
                assert await response.text() == "ok\n"
            found.append(host)
    return found


async def test_a_server_answers_on_both_families() -> None:
    with claimed_ports(1) as (port,):
        async with serving(application(), port):
            assert await answers(port) == [*LOOPBACKS]


async def test_a_free_port_is_the_same_for_both_families() -> None:
    runner = web.AppRunner(application())
    await runner.setup()
    await listen_on(runner, 0)
    ports = {address[1] for address in runner.addresses}
    assert len(ports) == 1
    assert await answers(ports.pop()) == [*LOOPBACKS]
    await runner.cleanup()


@pytest.mark.parametrize("host", LOOPBACKS)
def test_one_address_is_of_its_own_family(host: str) -> None:
    (opened,) = listen(host, 0)
    with opened:
        assert opened.getsockname()[0] == host


def without(monkeypatch: pytest.MonkeyPatch, family: socket.AddressFamily, code: int) -> None:
    """The kernel has no sockets of this family."""
    real: Callable[..., socket.socket] = listening._listen

    def refuse(asked: socket.AddressFamily, *args: Any) -> socket.socket:
        if asked == family:
            raise OSError(code, "no such family")
        return real(asked, *args)

    monkeypatch.setattr(listening, "_listen", refuse)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_a_kernel_without_one_family_serves_the_other(
    monkeypatch: pytest.MonkeyPatch, family: socket.AddressFamily, code: int
) -> None:
    without(monkeypatch, family, code)
    (opened,) = listen(None, 0)
    with opened:
        assert opened.family != family


def test_a_port_that_is_in_use_for_one_family_is_an_error() -> None:
    (taken,) = listen("::1", 0)
    port = taken.getsockname()[1]
    with taken, pytest.raises(OSError, match="in use"):
        listen(None, port)


def test_another_free_port_is_taken_if_one_is_free_for_one_family_only(monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = listening._listen, list[int]()

    def refuse_once(asked: socket.AddressFamily, host: str, port: int) -> socket.socket:
        if asked == socket.AF_INET6 and not refused:
            refused.append(port)
            raise OSError(errno.EADDRINUSE, "in use")
        return real(asked, host, port)

    monkeypatch.setattr(listening, "_listen", refuse_once)
    opened = listen(None, 0)
    assert len(opened) == 2
    for each in opened:
        each.close()


@pytest.mark.parametrize(
    ("limits", "raised", "allowed"),
    [
        ((1024, 524_288), (16_384 + OTHER_FILES, 524_288), 16_384),
        ((1024, 4096), (4096, 4096), 4096 - OTHER_FILES),
        ((1024, resource.RLIM_INFINITY), (16_384 + OTHER_FILES, resource.RLIM_INFINITY), 16_384),
        ((524_288, 524_288), None, 16_384),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None, 16_384),
    ],
)
def test_connections_never_need_more_files_than_the_process_may_open(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], raised: tuple[int, int] | None, allowed: int
) -> None:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: found.append(pair))
    assert allow_connections(16_384) == allowed
    assert found == ([raised] if raised else [])
