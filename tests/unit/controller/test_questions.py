import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from pydantic import BaseModel
from rlrun.controller import questions
from rlrun.controller.questions import PollError, Questioner

Handler = Callable[[web.Request], Awaitable[web.Response]]


class Count(BaseModel):
    """What is asked for."""

    count: int


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handler], Awaitable[str]]]:
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
async def questioner() -> AsyncIterator[Questioner]:
    made = Questioner()
    yield made
    await made.close()


async def test_the_body_arrives_and_the_answer_has_its_shape(
    serve: Callable[[Handler], Awaitable[str]], questioner: Questioner
) -> None:
    async def double(request: web.Request) -> web.Response:
        return web.json_response({"count": 2 * (await request.json())["count"]})

    assert await questioner.ask("PUT", await serve(double), Count, {"count": 4}) == Count(count=8)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (web.Response(status=503, text="still loading"), "answers 503: still loading"),
        (web.Response(text="count: 4"), "answers no Count: 1 errors"),
    ],
)
async def test_anything_else_is_said_in_words(
    serve: Callable[[Handler], Awaitable[str]], questioner: Questioner, answer: web.Response, told: str
) -> None:
    async def give(_: web.Request) -> web.Response:
        return answer

    url = await serve(give)
    with pytest.raises(PollError, match=f"GET {url} {told}"):
        await questioner.ask("GET", url, Count)


async def test_silence_and_absence_have_an_end(
    serve: Callable[[Handler], Awaitable[str]], questioner: Questioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "POLL_SECONDS", 1.0)

    async def sleep(_: web.Request) -> web.Response:
        await asyncio.sleep(5)
        return web.Response()

    with pytest.raises(PollError, match="Timeout"):
        await questioner.ask("GET", await serve(sleep), Count)
    with pytest.raises(PollError, match="ClientConnector"):
        await questioner.ask("GET", "http://127.0.0.1:9/", Count)
