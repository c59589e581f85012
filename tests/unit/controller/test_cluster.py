"""Logs over HTTP: the end of a long one, and what is no log."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio import client
from rlrun.kube.async_client import AsyncApiTransport, AsyncKubeClient
from rlrun.kube.errors import ApiError

PATH = "/api/v1/namespaces/team/pods/{pod}/log"


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[AsyncKubeClient, list[dict[str, str]]]]:
    """An API server with the logs of a few pods, and what it was asked."""
    asked: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(dict(request.query))
        match request.match_info["pod"]:
            case "long":
                response = web.StreamResponse()
                await response.prepare(request)
                for number in range(40):
                    await response.write(f"{number:04d}".encode() * 8192)
                return response
            case "waiting":
                body = {"reason": "BadRequest", "message": "container is waiting to start"}
                return web.json_response(body, status=400)
            case "gone":
                return web.json_response({"reason": "NotFound", "message": "no pod"}, status=404)
            case "forbidden":
                return web.json_response({"reason": "Forbidden", "message": "no pods/log"}, status=403)
            case _:
                return web.Response(text="hello\n")

    app = web.Application()
    app.router.add_get(PATH, answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    cluster = AsyncKubeClient(AsyncApiTransport(configuration))
    try:
        yield cluster, asked
    finally:
        await cluster.close()
        await runner.cleanup()


async def test_a_log_is_asked_for_by_container() -> None:
    async with serving() as (cluster, asked):
        assert await cluster.log("team", "short", "trainer", previous=True, limit=100) == b"hello\n"
        assert asked == [{"container": "trainer", "previous": "true", "tailLines": "200000"}]


async def test_of_a_long_log_the_end_is_kept() -> None:
    async with serving() as (cluster, _):
        found = await cluster.log("team", "long", "main", previous=False, limit=100_000)
        assert found
        assert len(found) == 100_000
        assert found.endswith(b"0039" * 8192)


@pytest.mark.parametrize("pod", ["waiting", "gone"])
async def test_no_log_is_no_error(pod: str) -> None:
    async with serving() as (cluster, _):
        assert await cluster.log("team", pod, "main", previous=False, limit=100) is None


async def test_a_refusal_is_one() -> None:
    async with serving() as (cluster, _):
        with pytest.raises(ApiError, match="403 Forbidden"):
            await cluster.log("team", "forbidden", "main", previous=False, limit=100)
