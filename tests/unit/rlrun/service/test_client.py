import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from pydantic import BaseModel
from rlrun.service import client
from rlrun.service.client import HttpClient
from rlrun.service.errors import RequestError, RequestRejected, ServiceUnavailable

Handler = Callable[[web.Request], Awaitable[web.Response]]
Serve = Callable[[Handler], Awaitable[str]]


class Count(BaseModel):
    """Response that the tests ask for."""

    count: int


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners: list[web.AppRunner] = []

    async def start(handler: Handler) -> str:
        app = web.Application()
        app.router.add_route("*", "/", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/"

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    made = HttpClient(timeout=30)
    yield made
    await made.close()


async def test_body_is_sent_as_json_and_response_is_parsed(serve: Serve, http: HttpClient) -> None:
    async def double(request: web.Request) -> web.Response:
        assert request.content_type == "application/json"
        return web.json_response({"count": 2 * (await request.json())["count"]})

    assert await http.call("PUT", await serve(double), Count, {"count": 4}) == Count(count=8)


@pytest.mark.parametrize(
    ("response", "error_class", "reason", "message"),
    [
        ((503, "still loading"), ServiceUnavailable, "HTTP503", "responded with 503"),
        ((503, '{"reason": "Loading", "message": "wait"}'), ServiceUnavailable, "Loading", "wait"),
        ((422, '{"reason": "BatchInvalid", "message": "empty"}'), RequestRejected, "BatchInvalid", "empty"),
        ((500, "no"), RequestRejected, "HTTP500", "responded with 500"),
        ((200, "count: 4"), RequestRejected, "AnswerInvalid", "is not a valid Count, possibly because the server"),
        ((200, " " * (1 << 21)), RequestRejected, "AnswerTooLarge", "is larger than"),
    ],
)
async def test_unusable_response_is_an_error_with_its_problem(
    serve: Serve,
    http: HttpClient,
    response: tuple[int, str],
    error_class: type[RequestError],
    reason: str,
    message: str,
) -> None:
    async def give(_: web.Request) -> web.Response:
        return web.Response(status=response[0], text=response[1])

    with pytest.raises(error_class) as caught:
        await http.call("GET", await serve(give), Count)
    assert caught.value.problem.reason == reason
    assert message in caught.value.problem.message


async def test_silent_and_absent_servers_are_unavailable(serve: Serve) -> None:
    async def sleep(_: web.Request) -> web.Response:
        await asyncio.sleep(5)
        return web.Response()

    http = HttpClient(timeout=0.5)
    try:
        for url, message in ((await serve(sleep), "[Tt]imeout"), ("http://127.0.0.1:9/", "Cannot connect")):
            with pytest.raises(ServiceUnavailable, match=f"Unreachable: GET {url}: .*{message}"):
                await http.call("GET", url, Count)
    finally:
        await http.close()


async def test_long_error_texts_are_cut(serve: Serve) -> None:
    async def fail(_: web.Request) -> web.Response:
        return web.Response(status=500, text="x" * 10_000)

    async with aiohttp.ClientSession() as session:
        with pytest.raises(RequestRejected, match="responded with 500: xxx") as caught:
            await client.request(session, "GET", await serve(fail), timeout=30, max_bytes=2**20)
    assert len(caught.value.problem.message) < client.TEXT_LIMIT + 100


async def test_the_operator_shows_no_text_of_a_foreign_server(serve: Serve, http: HttpClient) -> None:
    async def internal(_: web.Request) -> web.Response:
        return web.Response(status=403, text="only the operator can read this")

    with pytest.raises(RequestRejected) as caught:
        await http.call("GET", await serve(internal), Count)
    assert "only the operator" not in str(caught.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(serve: Serve, status: int) -> None:
    calls: list[str] = []

    async def internal(request: web.Request) -> web.Response:
        calls.append(request.method)
        return web.Response(text="reached")

    target = await serve(internal)

    async def redirect(_: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Location": target})

    async with aiohttp.ClientSession() as session:
        with pytest.raises(RequestRejected, match=r"a redirect to 127\.0\.0\.1\. Redirects are not followed") as caught:
            await client.request(session, "POST", await serve(redirect), body=b"{}", timeout=30, max_bytes=2**20)
    assert caught.value.status == status
    assert calls == []
