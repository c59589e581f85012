"""Requests of several clients at once: each is timed, and slow ones are seen."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bench.server import measure_requests, result_of

CLIENTS, COUNT = 5, 20
HEADERS = [{"Authorization": f"Bearer {number}"} for number in range(CLIENTS)]


async def measured(handler: object) -> list[float]:
    app = web.Application()
    app.router.add_get("/", handler)  # type: ignore[arg-type]
    async with TestServer(app) as server:
        return await measure_requests(str(server.make_url("/")), HEADERS, COUNT)


async def test_every_request_counts_but_those_that_open_connections() -> None:
    asked: list[str] = []

    async def count(request: web.Request) -> web.Response:
        asked.append(request.headers["Authorization"])
        return web.Response()

    assert len(await measured(count)) == CLIENTS * COUNT
    assert sorted(asked) == sorted(f"Bearer {n}" for n in range(CLIENTS) for _ in range(COUNT + 1))


async def test_a_few_slow_requests_are_in_the_tail() -> None:
    asked = 0

    async def sleep_sometimes(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.5 if asked % 20 == 0 else 0)
        return web.Response()

    row = result_of([await measured(sleep_sometimes)], [[0.1] * 99 + [0.2]], 1000, [0.1])
    assert row.ratio is not None
    assert row.ratio >= 500
    assert row.samples[0]["peer_p99_ms"] == 100


async def test_a_refused_request_is_no_fast_one() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=429, text="too many")

    with pytest.raises(ExceptionGroup) as found:
        await measured(refuse)
    assert "429" in str(found.value.exceptions[0])
