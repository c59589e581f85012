"""A sidecar between a small engine, a store in memory and a trainer."""

import hashlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from rlrun.protocol.policy import PolicyKind, PolicyRef
from rlrun.storage.layout import ADAPTER_WEIGHTS, S3Uri
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun_adapter_sidecar.engine.metrics import SidecarMetrics
from rlrun_adapter_sidecar.engine.policy_files import PolicyFiles
from rlrun_adapter_sidecar.engine.trainer_fallback import TrainerFallback
from rlrun_adapter_sidecar.engine.vllm_client import Engine
from rlrun_adapter_sidecar.policies.adapters import AdapterLoader
from rlrun_adapter_sidecar.policies.server import sidecar_app

from tests.support.fake_engine import FakeEngine
from tests.support.fake_policy_server import FakePolicyServer
from tests.support.fake_s3 import InMemoryStore


class PolicyStore(InMemoryStore):
    """A run's policies in S3."""

    def publish_policy(
        self,
        version: int,
        weights: bytes,
        kind: PolicyKind = PolicyKind.adapter,
        file: str = ADAPTER_WEIGHTS,
        folder: str = "s3://bucket/run/policy",
    ) -> PolicyRef:
        digest = hashlib.sha256(weights).hexdigest()
        uri = f"{folder}/v{version:06d}-{digest[:8]}"
        self.publish(uri, {file: weights}, ArtifactKind.policy)
        return PolicyRef(version=version, digest=digest, uri=uri, kind=kind)

    def download(self, uri: S3Uri, dest: Path, manifest: Manifest | None = None, *, digest: str = "") -> Manifest:
        time.sleep(0.05)  # so that requests overlap
        return super().download(uri, dest, manifest, digest=digest)


@dataclass
class Sidecar:
    """The sidecar's routes as calls, with what stands around it."""

    engine: FakeEngine
    store: PolicyStore
    folder: Path
    base: str
    http: aiohttp.ClientSession
    stop_engine: Callable[[], Any]
    trainer: FakePolicyServer
    adapters: AdapterLoader

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with self.http.request(method, self.base + path, json=body) as response:
            is_json = response.content_type == "application/json"
            return response.status, await response.json() if is_json else await response.text()

    async def put(self, policy: PolicyRef) -> tuple[int, Any]:
        return await self.call("PUT", f"/adapters/{policy.name}", policy.to_json_dict())


@pytest.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator[Sidecar]:
    engine, store, trainer = FakeEngine(), PolicyStore(), FakePolicyServer()
    engine_server, trainer_server = TestServer(engine.app()), TestServer(trainer.app())
    await engine_server.start_server()
    await trainer_server.start_server()
    trainer.url = f"http://127.0.0.1:{trainer_server.port}"
    folder = tmp_path / "adapters"
    folder.mkdir()
    async with aiohttp.ClientSession() as http:
        client = Engine(http, f"http://127.0.0.1:{engine_server.port}", load_deadline=5)
        fallback = TrainerFallback(http, store)
        adapters = AdapterLoader(client, PolicyFiles(store, folder, 5, SidecarMetrics(), fallback), unload_grace=0.2)
        server = TestServer(sidecar_app(adapters, folder))
        await server.start_server()
        yield Sidecar(
            engine, store, folder, f"http://127.0.0.1:{server.port}", http, engine_server.close, trainer, adapters
        )
        await adapters.close()
        await server.close()
    await engine_server.close()
    await trainer_server.close()
