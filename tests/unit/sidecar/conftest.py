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
from rlrun.artifacts.layout import MANIFEST, S3Uri
from rlrun.artifacts.manifest import ArtifactKind, FileEntry, Manifest
from rlrun.artifacts.store import NotFound, StoreError
from rlrun.schema.wire import PolicyRef
from rlrun_orchestrator.sidecar.adapters import Adapters
from rlrun_orchestrator.sidecar.engine import Engine
from rlrun_orchestrator.sidecar.server import sidecar_app


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


class FakeStore:
    """Artifacts in memory; `fail` is raised by the next downloads."""

    def __init__(self) -> None:
        self.artifacts: dict[str, bytes] = {}
        self.downloads = 0
        self.fail: StoreError | None = None

    def publish(self, version: int, weights: bytes) -> PolicyRef:
        digest = hashlib.sha256(weights).hexdigest()
        uri = f"s3://bucket/run/policy/v{version:06d}-{digest[:8]}"
        self.artifacts[uri] = weights
        return PolicyRef(version=version, digest=digest, uri=uri)

    def download_artifact(self, uri: S3Uri, dest: Path) -> Manifest:
        self.downloads += 1
        time.sleep(0.05)
        if self.fail:
            raise self.fail
        if str(uri) not in self.artifacts:
            raise NotFound(f"{uri} has no {MANIFEST}")
        weights = self.artifacts[str(uri)]
        name = "adapter_model.safetensors"
        entry = FileEntry(name=name, size=len(weights), sha256=hashlib.sha256(weights).hexdigest())
        manifest = Manifest(kind=ArtifactKind.policy, files=[entry], created_at=datetime.now(UTC))
        dest.mkdir(parents=True)
        (dest / name).write_bytes(weights)
        (dest / MANIFEST).write_text(manifest.model_dump_json(by_alias=True))
        return manifest


@dataclass
class Sidecar:
    """The sidecar's routes as calls, with what stands around it."""

    engine: FakeEngine
    store: FakeStore
    folder: Path
    base: str
    http: aiohttp.ClientSession
    stop_engine: Callable[[], Any]

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with self.http.request(method, self.base + path, json=body) as response:
            is_json = response.content_type == "application/json"
            return response.status, await response.json() if is_json else await response.text()

    async def put(self, policy: PolicyRef) -> tuple[int, Any]:
        return await self.call("PUT", f"/adapters/{policy.name}", policy.to_json_dict())


@pytest.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator[Sidecar]:
    engine, store = FakeEngine(), FakeStore()
    engine_server = TestServer(engine.app())
    await engine_server.start_server()
    folder = tmp_path / "adapters"
    folder.mkdir()
    async with aiohttp.ClientSession() as http:
        client = Engine(http, f"http://127.0.0.1:{engine_server.port}", load_deadline=5)
        adapters = Adapters(client, store, folder, download_deadline=5, unload_grace=0.2)
        server = TestServer(sidecar_app(adapters, folder))
        await server.start_server()
        yield Sidecar(engine, store, folder, f"http://127.0.0.1:{server.port}", http, engine_server.close)
        await adapters.close()
        await server.close()
    await engine_server.close()
