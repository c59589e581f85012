"""A small engine that behaves like vLLM's adapter routes, and a store that hands adapters out from memory."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rlrun.protocol.inference import LoadRequest
from rlrun.protocol.policy import PolicyKind, PolicyRef
from rlrun.storage.layout import MANIFEST, S3Uri
from rlrun.storage.manifest import ArtifactKind, FileEntry, Manifest
from rlrun_adapter_sidecar.engine.trainer_fallback import TrainerFallback
from rlrun_adapter_sidecar.engine.vllm_client import Engine
from rlrun_adapter_sidecar.policies.adapters import AdapterLoader
from rlrun_adapter_sidecar.policies.server import sidecar_app

from tests.support.fake_s3 import InMemoryStore


@dataclass
class FakeEngine:
    """vLLM's three routes; `refuse` is a status and message for the next loads."""

    loaded: dict[str, str] = field(default_factory=dict)
    loads: int = 0
    refuse: tuple[int, str] | None = None
    lists: bool = True
    """Whether accepted adapters appear in the list."""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/load_lora_adapter", self._load)
        app.router.add_post("/v1/unload_lora_adapter", self._unload)
        return app

    async def _models(self, _: web.Request) -> web.Response:
        names = self.loaded if self.lists else {}
        models: list[dict[str, Any]] = [{"id": "base", "root": "/models/base", "parent": None}]
        return web.json_response({"data": models + [{"id": n, "root": p, "parent": "base"} for n, p in names.items()]})

    async def _load(self, request: web.Request) -> web.Response:
        self.loads += 1
        body = await request.json()
        await asyncio.sleep(0.05)
        if self.refuse:
            return web.json_response({"error": {"message": self.refuse[1], "type": "x"}}, status=self.refuse[0])
        if body["lora_name"] in self.loaded:
            message = f"The lora adapter '{body['lora_name']}' has already been loaded."
            return web.json_response({"error": {"message": message}}, status=400)
        assert (Path(body["lora_path"]) / "adapter_model.safetensors").is_file()
        self.loaded[body["lora_name"]] = body["lora_path"]
        return web.Response(text="Success")

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        if self.loaded.pop(name, None) is None:
            return web.json_response({"error": {"message": f"The lora adapter '{name}' cannot be found."}}, status=404)
        return web.Response(text="Success")


WEIGHTS = "adapter_model.safetensors"


def manifest_of(weights: bytes) -> Manifest:
    """Of a policy with nothing but weights."""
    entry = FileEntry(name=WEIGHTS, size=len(weights), sha256=hashlib.sha256(weights).hexdigest())
    return Manifest(kind=ArtifactKind.policy, files=[entry], created_at=datetime.now(UTC))


class FakeTrainer:
    """What the trainer keeps of its newest policies."""

    def __init__(self) -> None:
        self.policies: dict[str, bytes] = {}
        self.url = ""
        self.tampered = False
        self.manifest: Manifest | None = None
        """Instead of the right one."""
        self.asked: list[str] = []

    def publish(self, version: int, weights: bytes) -> LoadRequest:
        digest = hashlib.sha256(weights).hexdigest()
        ref = PolicyRef(version=version, digest=digest, uri=f"s3://bucket/run/policy/v{version:06d}-{digest[:8]}")
        self.policies[ref.name] = weights
        return self.load_of(ref)

    def load_of(self, ref: PolicyRef) -> LoadRequest:
        return LoadRequest(**ref.model_dump(), fallback=f"{self.url}/sessions/u/policies/{ref.name}")

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/sessions/u/policies/{policy}/{file:.+}", self._file)
        return app

    async def _file(self, request: web.Request) -> web.Response:
        name, file = request.match_info["policy"], request.match_info["file"]
        self.asked.append(file)
        if name not in self.policies:
            return web.json_response({"reason": "PolicyMissing", "message": "gone"}, status=404)
        weights = self.policies[name]
        if file == MANIFEST:
            return web.Response(text=(self.manifest or manifest_of(weights)).model_dump_json(by_alias=True))
        return web.Response(body=weights[:-1] if self.tampered else weights)


class PolicyStore(InMemoryStore):
    """A run's policies in S3."""

    def publish_policy(
        self, version: int, weights: bytes, kind: PolicyKind = PolicyKind.adapter, file: str = WEIGHTS
    ) -> PolicyRef:
        digest = hashlib.sha256(weights).hexdigest()
        uri = f"s3://bucket/run/policy/v{version:06d}-{digest[:8]}"
        self.publish(uri, {file: weights}, ArtifactKind.policy)
        return PolicyRef(version=version, digest=digest, uri=uri, kind=kind)

    def download(self, uri: S3Uri, dest: Path, manifest: Manifest | None = None) -> Manifest:
        time.sleep(0.05)  # so that requests overlap
        return super().download(uri, dest, manifest)


@dataclass
class Sidecar:
    """The sidecar's routes as calls, with what stands around it."""

    engine: FakeEngine
    store: PolicyStore
    folder: Path
    base: str
    http: aiohttp.ClientSession
    stop_engine: Callable[[], Any]
    trainer: FakeTrainer
    adapters: AdapterLoader

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with self.http.request(method, self.base + path, json=body) as response:
            is_json = response.content_type == "application/json"
            return response.status, await response.json() if is_json else await response.text()

    async def put(self, policy: PolicyRef) -> tuple[int, Any]:
        return await self.call("PUT", f"/adapters/{policy.name}", policy.to_json_dict())


@pytest.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator[Sidecar]:
    engine, store, trainer = FakeEngine(), PolicyStore(), FakeTrainer()
    engine_server, trainer_server = TestServer(engine.app()), TestServer(trainer.app())
    await engine_server.start_server()
    await trainer_server.start_server()
    trainer.url = f"http://127.0.0.1:{trainer_server.port}"
    folder = tmp_path / "adapters"
    folder.mkdir()
    async with aiohttp.ClientSession() as http:
        client = Engine(http, f"http://127.0.0.1:{engine_server.port}", load_deadline=5)
        fallback = TrainerFallback(http, store)
        adapters = AdapterLoader(client, store, folder, download_deadline=5, unload_grace=0.2, fallback=fallback)
        server = TestServer(sidecar_app(adapters, folder))
        await server.start_server()
        yield Sidecar(
            engine, store, folder, f"http://127.0.0.1:{server.port}", http, engine_server.close, trainer, adapters
        )
        await adapters.close()
        await server.close()
    await engine_server.close()
    await trainer_server.close()
