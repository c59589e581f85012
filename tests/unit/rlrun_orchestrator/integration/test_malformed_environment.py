"""Environments whose answers contradict what they were asked: contained in their group, counted, survived."""

import asyncio
import json
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
from tests.unit.rlrun_orchestrator.conftest import World

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
        client = EnvironmentClient(http, "env", str(server.make_url("")))

        async def asking(text: str) -> Any:
            nonlocal said
            said = text
            return await client.roll_out(GROUP)

        yield asking
    await server.close()


def text(reward: str, group: str = "g1") -> str:
    return f'{{"groupId": "{group}", "rollouts": [{{"rolloutId": "r0", "reward": {reward}}}], "seconds": 1}}'


async def test_what_is_no_answer_to_the_question_is_refused(ask: Ask) -> None:
    assert (await ask(text("0.5"))).rollouts[0].reward == 0.5
    for said in (text('"much"'), text("[1]"), text("null"), text("0.5", group="g2"), "[]", "{", "<html>"):
        with pytest.raises(RequestRejected, match="AnswerInvalid"):
            await ask(said)


async def test_an_answer_without_end_is_not_read_to_the_end(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_client, "MAX_ANSWER", 1000)
    with pytest.raises(RequestRejected, match="AnswerTooLarge"):
        await ask(text("0.5" + " " * 200_000))


class Liar:
    """Spoils every second answer of an honest environment, each time in another way."""

    def __init__(self) -> None:
        self.told = 0

    def spoil(self, answer: dict[str, Any]) -> str:
        self.told += 1
        rollouts = answer["rollouts"]
        match self.told % 12:
            case 0:
                rollouts[0]["reward"] = float("nan")
            case 2:
                rollouts[0]["reward"] = "a lot"
            case 4:
                rollouts[0]["rolloutId"] = "nobody"
            case 6:
                rollouts[:] = [rollouts[0]] * len(rollouts)
            case 8:
                rollouts[:] = rollouts[:1]
            case 10:
                rollouts += [{**rollout, "rolloutId": f"{rollout['rolloutId']}-more"} for rollout in rollouts]
        return json.dumps(answer)


async def test_a_run_survives_an_environment_that_contradicts_itself(world: World) -> None:
    world.spec |= {"maxSteps": 12}
    environment, liar = world.environments["words"], Liar()
    honest = environment.roll_out

    async def roll_out(request: web.Request) -> web.Response:
        response = await honest(request)
        assert isinstance(response.body, bytes)
        return web.Response(text=liar.spoil(json.loads(response.body)), content_type="application/json")

    environment.roll_out = roll_out  # type: ignore[method-assign]
    await world.start()
    assert await world.run() == 0
    status = world.last_word
    assert status.groups.trained == 24
    assert status.groups.errored > 0
    assert status.reward_errors > 0
    assert status.rollout_errors > 0
    told = {warning.reason: warning.message for warning in status.warnings}
    assert "no GroupResult" in told["AnswerInvalid"]
    for _, batch in world.trainer.batches:
        assert len(batch.samples) <= 8, "more rollouts than asked for weigh no more"
        assert abs(sum(sample.advantage for sample in batch.samples)) < 1e-9


async def test_a_group_that_hangs_is_given_up_at_its_deadline(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_client, "GRACE_SECONDS", 0.1)
    world.settings["group_deadline"] = 0.3
    environment = world.environments["words"]
    honest = environment.roll_out
    hung = asyncio.Event()

    async def roll_out(request: web.Request) -> web.Response:
        if not hung.is_set():
            hung.set()
            await asyncio.sleep(60)
        return await honest(request)

    environment.roll_out = roll_out  # type: ignore[method-assign]
    await world.start()
    assert await world.run() == 0
    assert hung.is_set()
    assert world.last_word.groups.errored + world.last_word.groups.stale >= 1
    assert world.last_word.groups.trained == 10
