"""The trainer's routes as calls."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp.test_utils import TestClient, TestServer
from rlrun.protocol.trainer import SessionSpec, SessionState, StepResult
from rlrun.storage.store import Store
from rlrun_trainer.runtime.compute_thread import Compute
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.server.http_server import Server
from rlrun_trainer.sessions.backend import Backend
from rlrun_trainer.sessions.session_registry import Sessions

from tests.support import trainer_requests
from tests.support.train_bodies import body_of


class Client:
    """The trainer's routes as calls."""

    def __init__(self, http: TestClient[Any, Any], sessions: Sessions) -> None:
        self.http = http
        self.sessions = sessions

    async def call(self, method: str, path: str, body: str | bytes | None = None) -> tuple[int, str]:
        async with self.http.request(method, path, data=body) as response:
            return response.status, await response.text()

    async def open(self, spec: SessionSpec, name: str = "run") -> SessionState:
        status, text = await self.call("PUT", f"/sessions/{name}", spec.model_dump_json(by_alias=True))
        assert status == 200, text
        return SessionState.model_validate_json(text)

    async def state(self, name: str = "run") -> SessionState:
        status, text = await self.call("GET", f"/sessions/{name}")
        assert status == 200, text
        return SessionState.model_validate_json(text)

    async def raw_step(self, step: int, seed: int, name: str = "run", batch_id: str = "") -> tuple[int, str]:
        body = body_of(trainer_requests.samples(10, seed), batch_id)
        return await self.call("POST", f"/sessions/{name}/steps/{step}", body)

    async def step(self, step: int, name: str = "run") -> StepResult:
        status, text = await self.raw_step(step, step, name)
        assert status == 200, text
        return StepResult.model_validate_json(text)

    async def save(self, kind: str, step: int, body: str | None = None, name: str = "run") -> SessionState:
        status, text = await self.call("POST", f"/sessions/{name}/{kind}/{step}", body)
        assert status == 202, text
        return SessionState.model_validate_json(text)

    async def settled(self, name: str = "run") -> SessionState:
        assert await self.sessions.drain(30) == 0
        return await self.state(name)


@asynccontextmanager
async def serving(backend: Backend, store: Store, settings: TrainerSettings) -> AsyncIterator[Client]:
    """A trainer with this backend, in this process."""
    compute = Compute()
    server = Server()
    server.sessions = Sessions(backend, compute, store, settings)
    http: TestClient[Any, Any] = TestClient(TestServer(server.application()))
    await http.start_server()
    try:
        yield Client(http, server.sessions)
    finally:
        await http.close()
        compute.close()
