"""Engines of a shared pool: the stub of vLLM behind the middleware of the project, and a fake of the sidecar, which
writes an adapter's files itself.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rlrun.constants import CONFLICT, Reason
from rlrun.protocol.inference import AdapterList, LoadRequest
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import PooledRun, PoolOrder, engine_name, uid_of
from rlrun.service.errors import ProblemError
from rlrun.service.listening import listen
from rlrun_engine_access.shared_pool import SharedPool
from rlrun_server.http.endpoint import Endpoint, json_response
from rlrun_server.http.request import bearer_of
from rlrun_server.http.serving import serving_on
from rlrun_tinker.engine_client import EngineAddress
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tests.support.engine_wire import MODEL_FOLDER
from tests.support.images.stub_engine.app import ENV_TOKEN_SECONDS, create_app
from tests.support.images.stub_engine.arguments import ENV_ADAPTERS, EngineArguments
from tests.support.images.stub_engine.tokenizer import CharacterTokenizer

BASE_MODEL = "Qwen/Qwen3-8B"
MAX_LENGTH = 256
TOKENIZER = CharacterTokenizer(MODEL_FOLDER)


def prompt(text: str) -> list[int]:
    """Return the tokens of a message for the stub's model, which copies or reverses it."""
    return [*TOKENIZER.encode(text), TOKENIZER.separator]


@dataclass(eq=False)
class FakeEngine:
    """One engine with its sidecar, which keep the contract of `rlrun.protocol.inference`."""

    folder: Path
    address: EngineAddress = field(default_factory=lambda: EngineAddress("", ""))
    order: PoolOrder = field(default_factory=lambda: PoolOrder(base=BASE_MODEL))
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Completion requests that reached vLLM."""
    loads: list[str] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    adapters: dict[str, None] = field(default_factory=dict)
    """Names in the engine."""
    answer: Response | None = None
    """Response to all completion requests."""
    refusals: list[Response] = field(default_factory=list)
    """Responses to the next completion requests."""
    load_problem: ProblemError | None = None
    """Response to all loads."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Requests wait for it."""
    running: Counter[str] = field(default_factory=Counter)
    """Number of requests in vLLM by uid."""
    max_requests: int = 64
    aborted: int = 0

    def __post_init__(self) -> None:
        self.gate.set()
        arguments = EngineArguments(
            model=MODEL_FOLDER,
            served_model_name=BASE_MODEL,
            host="",
            port=0,
            max_model_len=MAX_LENGTH,
            max_lora_rank=64,
            middleware=[],
        )
        self._vllm = create_app(arguments, {ENV_TOKEN_SECONDS: "0", ENV_ADAPTERS: "1"})
        self._file = self.folder / "order.json"
        self.put_order()
        self.app = SharedPool(self._serve, self._file, max_loras=4, max_sequences=256, max_body=4 * 1024**2)

    def put_order(self) -> None:
        """Write the order for the middleware."""
        temporary = self.folder / "order.tmp"
        temporary.write_text(self.order.model_dump_json(by_alias=True))
        temporary.replace(self._file)

    async def restart(self) -> None:
        """Lose all adapters."""
        for name in list(self.adapters):
            await self._call_vllm("unload", {"lora_name": name})
        self.adapters.clear()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = json.loads(await request.body())
        self.requests.append(body)
        uid = uid_of(body["model"])
        self.running[uid] += 1
        ended = False
        try:
            await self.gate.wait()
            given = self.refusals.pop(0) if self.refusals else self.answer
            if given is None:
                async with httpx.AsyncClient(transport=httpx.ASGITransport(self._vllm), base_url="http://vllm") as http:
                    answer = await http.post("/v1/completions", json=body)
                given = Response(answer.content, answer.status_code, media_type="application/json")
            await given(scope, receive, send)
            ended = True
        finally:
            self.running[uid] -= 1
            self.aborted += not ended

    async def _load(self, request: Request) -> Response:
        run, wanted = self._run(request), LoadRequest.model_validate_json(await request.body())
        assert wanted.name == request.path_params["name"]
        self.loads.append(wanted.name)
        await self.gate.wait()
        if self.load_problem is not None:
            raise self.load_problem
        assert wanted.uri.rpartition("/")[0] in (run.policies, run.adapters), wanted.uri
        name = engine_name(run.uid, wanted.name)
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text('{"r": 8}')
        (folder / "adapter_model.safetensors").write_text(wanted.digest)
        await self._call_vllm("load", {"lora_name": name, "lora_path": str(folder)})
        self.adapters[name] = None
        return json_response(self._listed(run))

    async def _unload(self, request: Request) -> Response:
        run, name = self._run(request), request.path_params["name"]
        self.unloads.append(name)
        await self._call_vllm("unload", {"lora_name": engine_name(run.uid, name)})
        self.adapters.pop(engine_name(run.uid, name), None)
        return json_response(self._listed(run))

    def _listed(self, run: PooledRun) -> AdapterList:
        own = (name for name in self.adapters if uid_of(name) == run.uid)
        return AdapterList(adapters=[name.partition("_")[2] for name in own])

    def _run(self, request: Request) -> PooledRun:
        digest = hashlib.sha256(bearer_of(request).encode()).hexdigest()
        run = next((run for run in self.order.runs if run.token_digest == digest), None)
        if run is None:
            raise ProblemError.of(401, Reason.TOKEN_INVALID, "the run is not in this pool")
        return run

    async def _call_vllm(self, what: str, body: dict[str, str]) -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self._vllm), base_url="http://vllm") as http:
            await http.post(f"/v1/{what}_lora_adapter", json=body)

    def sidecar(self) -> Starlette:
        """Return the application of the sidecar."""
        routes = {"PUT": self._load, "DELETE": self._unload}
        return Starlette(
            routes=[
                Route("/adapters/{name}", Endpoint(handler), methods=[method]) for method, handler in routes.items()
            ]
        )


@dataclass(eq=False)
class FakePool:
    """Engines of one pool. Runs are in the order once rlrun-server has opened them."""

    engines: list[FakeEngine] = field(default_factory=list)
    addresses: list[EngineAddress] | None = None
    """What DNS says, in place of the addresses of `engines`."""
    is_late: bool = False
    """New runs do not get into the order."""
    hosts: list[str] = field(default_factory=list)
    """Hosts that were looked up."""

    async def resolve(self, host: str) -> Sequence[EngineAddress]:
        """Return the addresses of all engines."""
        self.hosts.append(host)
        found = [engine.address for engine in self.engines] if self.addresses is None else self.addresses
        if not found:
            raise OSError("no such host")
        return found

    def add(self, uid: str, token: str, uri: str) -> None:
        """Put a run into the order of all engines."""
        for engine in self.engines:
            if self.is_late or any(run.uid == uid for run in engine.order.runs):
                continue
            run = PooledRun(
                uid=uid,
                token_digest=hashlib.sha256(token.encode()).hexdigest(),
                policies=f"{uri}/policy",
                adapters=f"{uri}/adapters",
                max_requests=engine.max_requests,
            )
            engine.order = engine.order.model_copy(update={"runs": [*engine.order.runs, run]})
            engine.put_order()

    @asynccontextmanager
    async def serving(self, folder: Path, count: int = 1) -> AsyncIterator["FakePool"]:
        """Serve engines on loopback while the context is open."""
        async with AsyncExitStack() as stack:
            for number in range(count):
                place = folder / f"engine-{number}"
                place.mkdir()
                engine = FakeEngine(place)
                sockets = [listen("127.0.0.1", 0) for _ in range(2)]
                urls = [f"http://127.0.0.1:{each[0].getsockname()[1]}" for each in sockets]
                engine.address = EngineAddress(*urls)
                await stack.enter_async_context(serving_on(engine.app, sockets[0], drain_seconds=0.1))
                await stack.enter_async_context(serving_on(engine.sidecar(), sockets[1], drain_seconds=0.1))
                self.engines.append(engine)
            yield self


def refusal(status: int, message: str, **headers: str) -> Response:
    """Return an error of vLLM."""
    return JSONResponse({"error": {"message": message, "code": status}}, status, headers)


def full() -> ProblemError:
    """Return the sidecar's error if it has too many policies of the run."""
    return ProblemError(CONFLICT, Problem(reason=Reason.ADAPTER_DOWNLOAD_FAILED, message="the run has 160 policies"))
