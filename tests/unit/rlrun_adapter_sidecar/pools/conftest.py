"""A pool's sidecar between an engine, a store in memory and a trainer, as two runs and the operator see it."""

import hashlib
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from rlrun.protocol.access import bearer
from rlrun.protocol.policy import PolicyRef
from rlrun.protocol.shared_pool import PooledRun, PoolOrder
from rlrun.storage.manifest import Manifest
from rlrun_adapter_sidecar.pools.pool_runs import PoolRuns
from rlrun_adapter_sidecar.pools.server import pool_app
from rlrun_adapter_sidecar.pools.settings import PoolSettings

from tests.support.fake_engine import FakeEngine
from tests.support.fake_policy_server import FakePolicyServer
from tests.unit.rlrun_adapter_sidecar.conftest import PolicyStore

POOL_TOKEN = "p" * 64
GRANT = "signed grant"


@dataclass(frozen=True)
class Caller:
    """One run, whose trainer is the fake one if its uid is `u`."""

    uid: str
    folder: str

    @property
    def token(self) -> str:
        return f"token of {self.uid}"

    @property
    def entry(self) -> PooledRun:
        digest = hashlib.sha256(self.token.encode()).hexdigest()
        return PooledRun(uid=self.uid, token_digest=digest, policies=self.folder, max_requests=4)


ONE = Caller("u", "s3://bucket/run/policy")
TWO = Caller("u-2", "s3://bucket/run/policy2")


def order_of(*callers: Caller, number: int = 0) -> PoolOrder:
    return PoolOrder(base="base", runs=[caller.entry for caller in callers], grant=GRANT, number=number)


class Seconds:
    """Monotonic clock that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class GrantedStore(PolicyStore):
    """Store that remembers its grants, and whose downloads start and wait while `may_download` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.started = 0
        self.may_download = threading.Event()
        self.may_download.set()

    def download(self, *arguments: Any, **options: Any) -> Manifest:
        self.started += 1
        assert self.may_download.wait(30)
        return super().download(*arguments, **options)

    def use_grant(self, grant: str) -> None:
        self.grant = grant


@dataclass
class Pool:
    """The sidecar's routes as calls, with what stands around it."""

    engine: FakeEngine
    store: GrantedStore
    trainer: FakePolicyServer
    folder: Path
    runs: PoolRuns
    url: str
    http: aiohttp.ClientSession
    engine_http: aiohttp.ClientSession
    settings: PoolSettings
    clock: Seconds

    async def call(self, token: str | None, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with self.http.request(method, self.url + path, json=body, headers=bearer(token)) as response:
            is_json = response.content_type == "application/json"
            return response.status, await response.json() if is_json else await response.text()

    async def order(self, *callers: Caller, token: str = POOL_TOKEN, number: int = 0) -> tuple[int, Any]:
        return await self.call(token, "PUT", "/pool-order", order_of(*callers, number=number).to_json_dict())

    def restart(self) -> PoolRuns:
        """A new process with the same folder and engine."""
        return PoolRuns(self.engine_http, self.http, self.store, self.settings, self.clock)

    async def put(self, caller: Caller, policy: PolicyRef) -> tuple[int, Any]:
        return await self.call(caller.token, "PUT", f"/adapters/{policy.name}", policy.to_json_dict())

    async def names(self, caller: Caller) -> list[str]:
        status, body = await self.call(caller.token, "GET", "/adapters")
        assert status == 200, body
        return list(body["adapters"])

    def publish(self, caller: Caller, version: int, weights: bytes = b"weights") -> PolicyRef:
        return self.store.publish_policy(version, weights, folder=caller.folder)


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    engine, store, trainer = FakeEngine(token=POOL_TOKEN), GrantedStore(), FakePolicyServer()
    engine_server, trainer_server = TestServer(engine.app()), TestServer(trainer.app())
    await engine_server.start_server()
    await trainer_server.start_server()
    trainer.url = f"http://127.0.0.1:{trainer_server.port}"
    folder = tmp_path / "adapters"
    folder.mkdir()
    settings = PoolSettings(
        adapters_dir=folder,
        engine_url=f"http://127.0.0.1:{engine_server.port}",
        token=POOL_TOKEN,
        load_deadline=5,
        download_deadline=5,
        unload_grace=120,
    )
    async with aiohttp.ClientSession(headers=bearer(POOL_TOKEN)) as engine_http, aiohttp.ClientSession() as http:
        clock = Seconds()
        runs = PoolRuns(engine_http, http, store, settings, clock)
        server = TestServer(pool_app(runs, folder, POOL_TOKEN))
        await server.start_server()
        await runs.apply(order_of(ONE, TWO))
        url = f"http://127.0.0.1:{server.port}"
        yield Pool(engine, store, trainer, folder, runs, url, http, engine_http, settings, clock)
        await runs.close()
        await server.close()
    await engine_server.close()
    await trainer_server.close()
