"""Engine as its sidecar sees it: vLLM's routes for adapters and for whole weights."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from rlrun.service.access import token_middleware
from rlrun.storage.layout import ADAPTER_WEIGHTS

LOAD_SECONDS = 0.05
"""So that requests overlap."""


@dataclass
class FakeEngine:
    """vLLM with the base model `base`. Paths that do not hold the weights' file fail the test."""

    base: str = "base"
    loaded: dict[str, str] = field(default_factory=dict)
    """Paths of adapters by name."""
    loads: int = 0
    refuse: tuple[int, str] | None = None
    """Status and message of every load."""
    lists: bool = True
    """Whether loaded adapters appear in the list."""
    list_status: int = 200
    listings: int = 0
    """Number of requests for the list."""
    keeps: bool = False
    """Whether unloads fail."""
    version: str = "default"
    weights: bytes = b"base"
    paused: bool = False
    calls: list[str] = field(default_factory=list)
    """Routes for weights, in the order in which they were called."""
    breaks_at: str = ""
    token: str | None = None
    """Token that all requests need."""
    ignores_adapters: bool = False
    """Whether it answers as the base model, whatever it has loaded."""
    noise: float = 0.0
    """Difference between two answers to one request."""
    shy: bool = False
    """Whether it refuses to tell log-probabilities."""
    probed: list[str] = field(default_factory=list)
    """Models that completions were requested of."""
    busy: bool = False
    """Blocks of requests are held: the prefix cache cannot be emptied."""
    usage: str | None = None
    """Usage by run, for a pool's sidecar. None: no such route."""
    usage_queries: int = 0
    silent: bool = False
    """Whether it never answers queries of the usage."""

    def app(self) -> web.Application:
        app = web.Application(middlewares=[token_middleware(self.token)])
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/load_lora_adapter", self._load)
        app.router.add_post("/v1/unload_lora_adapter", self._unload)
        app.router.add_get("/weight_info", self._weight_info)
        app.router.add_get("/pool-usage", self._usage)
        for path in ("/pause", "/update_weight_version", "/collective_rpc", "/reset_prefix_cache", "/resume"):
            app.router.add_post(path, self._weight_order)
        return app

    def restart(self) -> None:
        self.version, self.weights, self.paused = "default", b"base", False
        self.loaded.clear()

    async def _models(self, _: web.Request) -> web.Response:
        self.listings += 1
        names = self.loaded if self.lists else {}
        models: list[dict[str, Any]] = [{"id": self.base, "root": "/models/base", "parent": None}]
        models += [{"id": name, "root": path, "parent": self.base} for name, path in names.items()]
        return web.json_response({"data": models}, status=self.list_status)

    async def _load(self, request: web.Request) -> web.Response:
        self.loads += 1
        body = await request.json()
        await asyncio.sleep(LOAD_SECONDS)
        if self.refuse:
            return refusal(*self.refuse)
        if body["lora_name"] in self.loaded:
            return refusal(400, f"The lora adapter '{body['lora_name']}' has already been loaded.")
        assert (Path(body["lora_path"]) / ADAPTER_WEIGHTS).is_file()
        self.loaded[body["lora_name"]] = body["lora_path"]
        return web.Response(text="Success")

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        model = body["model"]
        self.probed.append(model)
        if self.shy:
            return refusal(400, "logprobs are disabled")
        # lora_B comes last in the files of the tests.
        acts = any((Path(self.loaded[model]) / ADAPTER_WEIGHTS).read_bytes()[-4:]) and not self.ignores_adapters
        noise = self.noise * len(self.probed)
        likely = {"a": -0.5 - 1e-3 * acts + noise, "b": -1.5, "c": -2.5, "d": -3.5, "e": -4.5}
        choices = [{"index": n, "logprobs": {"top_logprobs": [likely]}} for n in range(len(body["prompt"]))]
        return web.json_response({"choices": choices})

    async def _unload(self, request: web.Request) -> web.Response:
        if self.keeps:
            return refusal(500, "busy")
        name = (await request.json())["lora_name"]
        if self.loaded.pop(name, None) is None:
            return refusal(404, f"The lora adapter '{name}' cannot be found.")
        return web.Response(text="Success")

    async def _usage(self, _: web.Request) -> web.Response:
        self.usage_queries += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.usage is None:
            return refusal(404, "Not Found")
        return web.Response(text=self.usage, content_type="application/json")

    async def _weight_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.version})

    async def _weight_order(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        if request.path == self.breaks_at:
            return refusal(500, "size mismatch for lm_head")
        body = json.loads(await request.read() or b"{}")
        match request.path:
            case "/pause":
                assert request.query["mode"] == "keep", "requests under way must not be aborted"
                self.paused = True
            case "/update_weight_version":
                self.version = body["new_version"]
            case "/collective_rpc":
                assert self.paused
                assert body["method"] == "reload_weights"
                self.weights = weights_in(Path(body["kwargs"]["weights_path"]))
            case "/reset_prefix_cache":
                assert request.query["reset_running_requests"] == "true"
                return web.json_response({"success": not self.busy})
            case "/resume":
                self.paused = False
        return web.json_response({})


def weights_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.glob("*.safetensors")))


def refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "x"}}, status=status)
