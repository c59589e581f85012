"""Environments whose responses do not fit the request: the error stays in its group and is counted."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from rlrun_orchestrator.rollouts import environment_client

from tests.support.run_processes import World


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
            case 3:
                answer["rollouts"] = "many"
            case 4:
                rollouts[0]["rolloutId"] = "nobody"
            case 6:
                rollouts[:] = [rollouts[0]] * len(rollouts)
            case 8:
                rollouts[:] = rollouts[:1]
            case 10:
                rollouts += [{**rollout, "rolloutId": f"{rollout['rolloutId']}-more"} for rollout in rollouts]
        return json.dumps(answer)


VALID = ("effective_batch_size", "zero_advantage_rollouts")
"""Metrics that count the valid rollouts of a batch together."""


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
    lines = world.lines()
    assert status.groups.trained == sum(line["progress/problems"] for line in lines)
    assert all(8 <= sum(line[f"batch/{name}"] for name in VALID) < 8 + 4 for line in lines), "without the missing ones"
    assert status.groups.errored > 0
    assert status.reward_errors > 0
    assert status.rollout_errors > 0
    told = {warning.reason: warning.message for warning in status.warnings}
    assert "is not a valid GroupResult" in told["AnswerInvalid"]
    for _, batch in world.trainer.batches:
        assert len(batch.samples) < 8 + 4, "more rollouts than asked for weigh no more"
        assert abs(sum(sample.advantage for sample in batch.samples)) < 1e-9


async def test_a_group_that_hangs_is_given_up_at_its_deadline(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_client, "GRACE_SECONDS", 0.1)
    world.spec["env"] = [{"id": "owner/words", "rolloutTimeoutSeconds": 1}]
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
