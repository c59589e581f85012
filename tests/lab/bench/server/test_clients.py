"""Requests of several clients at once: each is timed, and slow ones are seen."""

import asyncio

import pytest
from aiohttp import web

from bench.server.clients import measure_requests
from bench.server.results import of_requests
from tests.lab.bench.server.served import served

CLIENTS, COUNT = 5, 20


async def answer(request: web.Request) -> web.Response:
    return web.Response(text=request.headers["Authorization"])


def headers() -> list[dict[str, str]]:
    return [{"Authorization": f"Bearer {number}"} for number in range(CLIENTS)]


def test_every_request_counts_but_those_that_open_connections() -> None:
    asked: list[str] = []

    async def count(request: web.Request) -> web.Response:
        asked.append(request.headers["Authorization"])
        return web.Response()

    with served(web.get("/", count)) as url:
        found = asyncio.run(measure_requests(url, headers(), COUNT))
    assert len(found) == CLIENTS * COUNT
    assert sorted(asked) == sorted(f"Bearer {n}" for n in range(CLIENTS) for _ in range(COUNT + 1))


def test_a_few_slow_requests_are_in_the_tail_and_not_in_the_median() -> None:
    asked = 0

    async def sleep_sometimes(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if asked % 20 == 0:
            await asyncio.sleep(0.5)
        return web.Response()

    with served(web.get("/", sleep_sometimes), web.get("/peer", answer)) as url:
        ours = [asyncio.run(measure_requests(url, headers(), COUNT)) for _ in range(2)]
        peer = [asyncio.run(measure_requests(f"{url}/peer", headers(), COUNT)) for _ in range(2)]
    row = of_requests(ours, peer, 1000, CLIENTS, [0.1])
    assert row.ratio is not None
    assert row.ratio >= 500
    assert row.aim is not None
    assert not row.aim.met_by(row.ratio)
    assert row.samples[0]["p50_ms"] < 500
    assert row.figures["peer_p99_ms"] < 500


def test_a_refused_request_is_no_fast_one() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=429, text="too many")

    with served(web.get("/", refuse)) as url, pytest.raises(ExceptionGroup) as found:
        asyncio.run(measure_requests(url, headers(), COUNT))
    assert "429" in str(found.value.exceptions[0])


def test_a_request_of_another_kind_can_open_the_connection() -> None:
    async def sleep_at_first(_: web.Request) -> web.Response:
        await asyncio.sleep(0.3)
        return web.Response()

    with served(web.get("/first", sleep_at_first), web.get("/", answer)) as url:
        (seconds,) = asyncio.run(measure_requests(f"{url}/", headers()[:1], 1, first=f"{url}/first"))
    assert seconds < 0.3
