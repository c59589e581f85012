from typing import cast

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from rlrun.protocol.access import bearer
from rlrun.protocol.train_batch import BatchBody, TrainBatch
from rlrun.protocol.trainer import SessionSpec, SessionState, StepResult
from rlrun_orchestrator.training.trainer_client import Superseded, TrainerClient
from rlrun_trainer.server.http_server import Server
from rlrun_trainer.sessions.session_registry import Sessions

from tests.support.policy_refs import policy


async def test_sessions_and_policies_need_the_token_of_the_run() -> None:
    async with TestServer(Server("secret").application()) as server, aiohttp.ClientSession() as http:
        for path in ("/sessions/x", "/sessions/x/policies/p/manifest.json"):
            for headers, status in (({}, 401), (bearer("other"), 401), (bearer("secret"), 503)):
                async with http.get(server.make_url(path), headers=headers) as response:
                    assert response.status == status, path
        async with http.put(server.make_url("/sessions/x"), json={}) as response:
            assert response.status == 401
        for path in ("/healthz", "/metrics"):
            async with http.get(server.make_url(path)) as response:
                assert response.status == 200


class OpenSession:
    """A session that takes every request."""

    def __init__(self) -> None:
        self.name = "run"
        self.state = SessionState(step=0, policy=policy(0, "s3://rlrun/runs/uid-1"))
        self.changes: list[str] = []

    async def train(self, step: int, *_: object) -> StepResult:
        self.changes.append(f"step {step}")
        return StepResult(step=step + 1, policy=self.state.policy, metrics={})

    async def save_checkpoint(self, step: int, _: object) -> SessionState:
        self.changes.append(f"checkpoint {step}")
        return self.state

    async def save_adapter(self, step: int, _: object) -> SessionState:
        self.changes.append(f"adapter {step}")
        return self.state


class OneSession:
    """The registry of a trainer with one session."""

    def __init__(self) -> None:
        self.session = OpenSession()

    def all(self) -> list[OpenSession]:
        return [self.session]

    def get(self, _: str) -> OpenSession:
        return self.session

    async def open(self, *_: object) -> OpenSession:
        return self.session

    async def close(self, _: str) -> None:
        self.session.changes.append("closed")


async def test_late_requests_of_a_replaced_orchestrator_change_nothing() -> None:
    trainer = Server()
    registry = OneSession()
    trainer.sessions = cast(Sessions, registry)
    spec = SessionSpec(
        run_uri="s3://rlrun/runs/uid-1",
        run_name="reverse",
        run_uid="uid-1",
        namespace="team",
        model="tiny/model",
        lora_alpha=16,
        learning_rate=1e-4,
        max_steps=10,
        seq_len=256,
    )
    batch = BatchBody(TrainBatch([]))
    async with TestServer(trainer.application()) as server, aiohttp.ClientSession() as http:
        lost, next_one = (TrainerClient(http, str(server.make_url("/")), "run", name) for name in ("lost", "next"))
        await lost.open(spec, 10)
        await lost.step(0, batch, 10)
        await next_one.open(spec, 10)
        late = (
            lambda: lost.step(1, batch, 10),
            lambda: lost.checkpoint(1, {}),
            lambda: lost.adapter(1, {}),
            lambda: lost.open(spec, 10),
            lost.delete,
        )
        for request in late:
            with pytest.raises(Superseded) as raised:
                await request()
            assert raised.value.problem.reason == "OrchestratorSuperseded"
        await next_one.step(1, batch, 10)
    assert registry.session.changes == ["step 0", "step 1"]
