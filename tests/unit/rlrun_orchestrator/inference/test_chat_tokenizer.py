"""Rendering of conversations by an engine that other requests of the run may keep busy."""

from typing import Any

import aiohttp
import pytest
from aiohttp import web
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import MODEL_HEADER
from rlrun_orchestrator.inference import chat_tokenizer
from rlrun_orchestrator.inference.chat_tokenizer import ChatTokenizer
from rlrun_orchestrator.inference.replica_pool import Replica, ReplicaAddresses, ReplicaPool
from rlrun_orchestrator.inference.sidecar_client import SidecarClient

from tests.support.run_processes import serve

MODEL = "owner/tiny"


@pytest.mark.parametrize("refusal", [429, 401])
async def test_an_engine_that_refuses_for_a_time_is_asked_again(monkeypatch: pytest.MonkeyPatch, refusal: int) -> None:
    """A busy engine stays in rotation. One that does not know the run leaves it until its sidecar responds again."""
    monkeypatch.setattr(chat_tokenizer, "BUSY_SECONDS", 0.01)
    asked: list[tuple[str | None, dict[str, Any]]] = []

    async def tokenize(request: web.Request) -> web.Response:
        asked.append((request.headers.get(MODEL_HEADER), await request.json()))
        return web.json_response({"tokens": [1, 2]}, status=refusal if len(asked) < 4 else 200)

    async def nobody() -> list[ReplicaAddresses]:
        return []

    app = web.Application()
    app.router.add_post("/tokenize", tokenize)
    server = await serve(app)
    url = str(server.make_url("")).rstrip("/")
    async with aiohttp.ClientSession() as http:
        pool = ReplicaPool(http, nobody, dict, poll_interval=60)
        replica = Replica(ReplicaAddresses(url, url), SidecarClient(http, url), is_answering=True)
        pool.replicas[replica.endpoint] = replica
        refused: list[Problem | None] = []

        async def confirm(_: float) -> None:
            refused.append(replica.problem)
            replica.is_answering = True

        monkeypatch.setattr(pool, "wait_for_change", confirm)
        tokenizer = ChatTokenizer(http, pool, MODEL, {}, deadline=30)
        assert await tokenizer.encode([{"role": "user", "content": "x"}], add_generation_prompt=True) == [1, 2]
    await server.close()
    assert len(refused) == (3 if refusal == 401 else 0)
    assert all(problem and "does not accept this run's token" in problem.message for problem in refused)
    assert [(header, body["model"]) for header, body in asked] == [(MODEL, MODEL)] * 4
    assert replica.is_answering
