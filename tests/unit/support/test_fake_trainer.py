"""The fake trainer dies like a process."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from tests.support.fake_trainer import FakeTrainer
from tests.support.run_processes import serve
from tests.support.run_store import RunStore
from tests.support.train_bodies import body_of
from tests.support.waiting import until

SESSION = {
    "runUri": "s3://bucket/run",
    "runName": "run",
    "runUid": "u",
    "namespace": "ns",
    "model": "owner/tiny",
    "loraAlpha": 1.0,
    "learningRate": 0.1,
    "maxSteps": 8,
    "seqLen": 16,
}
BATCH = body_of([], "b")


@pytest.mark.parametrize("where", ["computing", "hold", "turn"])
async def test_requests_before_a_restart_do_not_reach_the_restarted_trainer(where: str) -> None:
    trainer = FakeTrainer(RunStore())
    server = await serve(trainer.application())
    url = str(server.make_url("/sessions/s"))
    async with aiohttp.ClientSession() as http:

        async def ask(path: str, body: Any, method: str = "POST") -> dict[str, Any]:
            async with http.request(
                method, f"{url}{path}", data=body if isinstance(body, bytes) else json.dumps(body)
            ) as response:
                found: dict[str, Any] = await response.json()
                return found

        assert (await ask("", SESSION, "PUT"))["step"] == 0
        if where != "turn":
            getattr(trainer, where).add(0)
        else:
            await trainer.turn.acquire()
        old = asyncio.create_task(ask("/steps/0", BATCH))
        reached = {
            "computing": trainer.asked.is_set,
            "hold": lambda: bool(trainer.results),
            "turn": lambda: bool(trainer.at_work),
        }
        await until(reached[where])
        trainer.restart()
        trainer.hold.clear()
        trainer.computing.clear()
        assert (await ask("", SESSION, "PUT"))["step"] == 0
        before = len(trainer.batches)
        trainer.released.set()
        if where == "turn":
            trainer.turn.release()
        with pytest.raises(aiohttp.ClientError):
            await old
        assert (await ask("", None, "GET"))["step"] == 0
        assert trainer.results == {}
        assert len(trainer.batches) == before
        assert (await ask("/steps/0", BATCH))["step"] == 1
    await server.close()
