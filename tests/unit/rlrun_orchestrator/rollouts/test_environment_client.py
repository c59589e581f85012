"""Answers of an environment server that do not fit the request."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from rlrun.protocol.environment import GroupRequest
from rlrun.service.errors import RequestRejected
from rlrun_orchestrator.rollouts import environment_client
from rlrun_orchestrator.rollouts.environment_client import EnvironmentClient

from tests.support.run_processes import serve

GROUP = GroupRequest(
    group_id="g1", example_index=0, rollouts=2, base_url="http://gateway/v1", model="m", deadline_seconds=5
)
Ask = Callable[[str], Awaitable[Any]]


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """Asks for a group, which is answered with this text."""
    said = ""

    async def groups(_: web.Request) -> web.Response:
        return web.Response(text=said, content_type="application/json")

    app = web.Application()
    app.router.add_post("/groups", groups)
    server = await serve(app)
    async with aiohttp.ClientSession() as http:
        client = EnvironmentClient(http, "env", str(server.make_url("")), group_deadline=5.0)

        async def asking(text: str) -> Any:
            nonlocal said
            said = text
            return await client.roll_out(GROUP)

        yield asking
    await server.close()


def text(reward: str, group: str = "g1") -> str:
    return f'{{"groupId": "{group}", "rollouts": [{{"rolloutId": "r0", "reward": {reward}}}], "seconds": 1}}'


async def test_response_that_does_not_fit_the_request_is_refused(ask: Ask) -> None:
    assert (await ask(text("0.5"))).rollouts[0].reward == 0.5
    for said in (text('"much"'), text("[1]"), text("null"), text("0.5", group="g2"), "[]", "{", "<html>"):
        with pytest.raises(RequestRejected, match="AnswerInvalid"):
            await ask(said)


async def test_endless_response_is_cut_off(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_client, "max_result_bytes", lambda rollouts: 1000)
    with pytest.raises(RequestRejected, match="AnswerTooLarge"):
        await ask(text("0.5" + " " * 200_000))
