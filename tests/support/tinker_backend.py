"""rlrun-server and the trainer of a shared pool as rlrun-tinker sees them. Both are fakes: they keep the contract of
`rlrun.protocol.client_run` and `rlrun.protocol.client_command`, and compute nothing. The pool's engines are in
`tests.support.tinker_engines`.
"""

import asyncio
import hashlib
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from rlrun.api.base.phases import Phase
from rlrun.api.base.received import InputInvalid, parse
from rlrun.api.base.schema import Schema
from rlrun.constants import Reason
from rlrun.protocol.client_command import (
    PREFIX,
    CommandError,
    CommandHeader,
    CommandPending,
    CommandResult,
    CommandState,
    ErrorCategory,
    ForwardBackward,
    SaveState,
    frame,
)
from rlrun.protocol.client_run import (
    CLIENT_MODEL_PATH,
    CLIENT_SAVE_PATH,
    CLIENT_SESSIONS_PATH,
    ClientModel,
    ClientSessionPlace,
    NewClientModel,
    NewClientSession,
    SavedState,
    SavedStates,
    SavedStateTtl,
    SaveKind,
)
from rlrun.protocol.engine_proof import NONCE_HEADER, PROOF_HEADER, proof_of
from rlrun.protocol.policy import PolicyRef
from rlrun.protocol.problem import Problem
from rlrun.service.client import HttpClient
from rlrun.service.errors import ProblemError
from rlrun.service.listening import listen
from rlrun_server.http.endpoint import Endpoint, Handler, json_response
from rlrun_server.http.request import bearer_of
from rlrun_server.http.serving import serving_on
from rlrun_tinker.app import TinkerApi, tinker_app
from rlrun_tinker.callers import Callers
from rlrun_tinker.engine_registry import EngineRegistry
from rlrun_tinker.futures import Futures
from rlrun_tinker.pool_trainer_client import PoolTrainerClient
from rlrun_tinker.run_server import RunServer
from rlrun_tinker.sample_futures import SampleFutures
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tests.support.tinker_engines import BASE_MODEL, FakePool

HOST = "engines.test"
"""Host of the engines of every pool."""
KEYS = {"ann": "team", "bob": "other"}
"""API keys and their namespaces."""
MODEL = BASE_MODEL
LOGPROB = -0.5


def uri_of(uid: str) -> str:
    """Return the folder of a run in S3."""
    return f"s3://bucket/team/{uid}"


@dataclass
class FakeTrainer:
    """Runs commands in the order of their numbers, each at once. A log-probability is always LOGPROB."""

    tokens: dict[str, str] = field(default_factory=dict)
    """Token of each run in the trainer's order, by uid."""
    commands: dict[tuple[str, int], bytes] = field(default_factory=dict)
    results: dict[tuple[str, int], bytes] = field(default_factory=dict)
    completed: Counter[str] = field(default_factory=Counter)
    """Number of completed commands of each run."""
    arrived: list[int] = field(default_factory=list)
    """Numbers of all received commands, repetitions included."""
    heartbeats: Counter[str] = field(default_factory=Counter)
    names: dict[str, SavedStates] = field(default_factory=dict)
    error: CommandError | None = None
    """Error of all commands."""
    refusal: tuple[int, Problem] | None = None
    """Response to all commands."""
    metrics: dict[str, float] = field(default_factory=lambda: {"loss:sum": 1.5})
    proves: bool = True
    is_paused: bool = False
    """Completes nothing."""
    result_size: int = 0
    """Minimum size of results in bytes."""
    url: str = ""

    def restart(self) -> None:
        """Lose all commands."""
        self.commands.clear()
        self.results.clear()

    def header(self, uid: str, seq: int) -> Any:
        """Return a received command without its buffers."""
        data = self.commands[uid, seq]
        _, size, _ = PREFIX.unpack_from(data)
        return parse(CommandHeader, data[PREFIX.size : PREFIX.size + size]).command

    def buffers(self, uid: str, seq: int) -> bytes:
        """Return the buffers of a received command."""
        data = self.commands[uid, seq]
        _, size, _ = PREFIX.unpack_from(data)
        return data[PREFIX.size + size :]

    async def _receive(self, request: Request, uid: str) -> Response:
        seq, data = int(request.path_params["seq"]), await request.body()
        self.arrived.append(seq)
        if self.refusal is not None:
            status, problem = self.refusal
            return json_response(problem, status)
        if self.commands.setdefault((uid, seq), data) != data:
            raise ProblemError.of(409, Reason.COMMAND_CONFLICT, f"command {seq} has another content")
        return Response(status_code=202)

    async def _result(self, request: Request, uid: str) -> Response:
        seq = int(request.path_params["seq"])
        if (uid, seq) not in self.commands:
            raise ProblemError.of(404, Reason.COMMAND_UNKNOWN, f"command {seq} is unknown")
        end = asyncio.get_running_loop().time() + float(request.query_params["wait"])
        while True:
            while not self.is_paused and (uid, self.completed[uid] + 1) in self.commands:
                self.completed[uid] += 1
                self.results[uid, self.completed[uid]] = self._run(uid, self.completed[uid])
            if (uid, seq) in self.results:
                data = self.results[uid, seq].ljust(self.result_size)
                return Response(data, media_type="application/vnd.rlrun.command")
            if asyncio.get_running_loop().time() >= end:
                return json_response(CommandPending(state=CommandState.active, reason="another run trains"), 202)
            await asyncio.sleep(0.01)

    def _run(self, uid: str, seq: int) -> bytes:
        try:
            command = self.header(uid, seq)
        except (InputInvalid, struct.error) as invalid:
            return frame(CommandResult(error=CommandError(message=str(invalid), category=ErrorCategory.user)))
        if self.error is not None:
            return frame(CommandResult(error=self.error))
        if isinstance(command, SaveState):
            is_adapter = command.saved_as is SaveKind.sampler_weights
            digest = hashlib.sha256(f"{uid}/{seq}".encode()).hexdigest() if is_adapter else None
            states = self.names.setdefault(uid, SavedStates()).of(command.saved_as)
            state = SavedState(step=seq, time=datetime.now(UTC), digest=digest)
            if command.name is not None and states.setdefault(command.name, state).step != seq:
                error = CommandError(message=f"{command.name} is used", category=ErrorCategory.user)
                return frame(CommandResult(error=error))
            if digest is not None:
                folder = f"policy/v{seq:06d}-{digest[:8]}" if command.name is None else f"adapters/step-{seq:06d}"
                return frame(CommandResult(policy=PolicyRef(version=seq, digest=digest, uri=f"{uri_of(uid)}/{folder}")))
        if not isinstance(command, ForwardBackward):
            return frame(CommandResult(metrics={}))
        shapes = [next((t.shape for t in datum.tensors if t.name == "target_tokens"), [0]) for datum in command.datums]
        lengths = [shape[0] * (shape[1] if len(shape) == 2 else 1) for shape in shapes]
        widths = [shape[1] if len(shape) == 2 else 0 for shape in shapes]
        arrays = struct.pack("<f", LOGPROB) * sum(lengths)
        result = CommandResult(metrics=self.metrics, lengths=lengths, widths=widths if any(widths) else [])
        return frame(result, [arrays])

    async def _beat(self, _: Request, uid: str) -> Response:
        self.heartbeats[uid] += 1
        return Response(status_code=204)

    def _with_token(self, handler: Callable[[Request, str], Any]) -> Handler:
        async def handle(request: Request) -> Response:
            uid = request.path_params["uid"]
            token = self.tokens.get(uid)
            if token is None or bearer_of(request) != token:
                raise ProblemError.of(401, "TokenInvalid", "the token is not that of the run")
            try:
                response: Response = await handler(request, uid)
            except ProblemError as error:
                response = json_response(error.problem, error.status)
            if self.proves:
                response.headers[PROOF_HEADER] = proof_of(token, request.headers[NONCE_HEADER])
            return response

        return handle

    def app(self) -> Starlette:
        """Return the application."""
        routes = {
            ("POST", "commands/{seq}"): self._receive,
            ("GET", "results/{seq}"): self._result,
            ("POST", "heartbeat"): self._beat,
        }
        return Starlette(
            routes=[
                Route(f"/sessions/{{uid}}/{path}", Endpoint(self._with_token(handler)), methods=[method])
                for (method, path), handler in routes.items()
            ]
        )


@dataclass
class FakeRunServer:
    """Creates a run at once. Callers are the keys in KEYS, each with the rights of its namespace."""

    trainer: FakeTrainer
    pool: FakePool = field(default_factory=FakePool)
    models: dict[tuple[str, str], ClientModel] = field(default_factory=dict)
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    """Method, path and body of each request."""
    token_of: Callable[[str], str] = "token-{}".format
    """Function that returns the token of a run for its uid."""
    is_full: bool = False
    """Runs wait for a slot."""
    failure: tuple[int, Problem] | None = None
    """Response to all requests."""
    delay: float = 0.0
    """Seconds until each response."""
    url: str = ""

    def one(self) -> ClientModel:
        """Return the only model."""
        (model,) = self.models.values()
        return model

    def change(self, **values: Any) -> None:
        """Change all models."""
        self.models = {key: model.model_copy(update=values) for key, model in self.models.items()}

    def count(self, method: str, end: str = "") -> int:
        """Return the number of requests with this method whose path has this end."""
        return sum(each == method and path.endswith(end) for each, path, _ in self.requests)

    def _current(self, model: ClientModel) -> ClientModel:
        if self.is_full or model.has_ended:
            waiting = Problem(reason="PoolFull", message="3 runs ahead")
            return model.model_copy(update={"trainer_url": None, "inference_host": None, "waiting": waiting})
        return model.model_copy(update={"trainer_url": self.trainer.url, "inference_host": HOST})

    def _model(self, request: Request) -> ClientModel:
        place = request.path_params
        found = self.models.get((place["namespace"], place["run"]))
        if found is None:
            raise ProblemError.of(404, Reason.OBJECT_NOT_FOUND, f"rlruns {place['run']} does not exist")
        return found

    async def _session(self, request: Request, namespace: str) -> Schema:
        asked = parse(NewClientSession, await request.body())
        if asked.namespace not in (None, namespace):
            raise ProblemError.of(403, Reason.ACCESS_FORBIDDEN, f"may not create rlruns in {asked.namespace}")
        return ClientSessionPlace(namespace=namespace)

    async def _create(self, request: Request, namespace: str) -> Schema:
        asked, run = parse(NewClientModel, await request.body()), request.path_params["run"]
        base = asked.base_model or MODEL
        if base != MODEL:
            raise ProblemError.of(422, "ModelNotFound", f"the model {base} does not exist")
        made = ClientModel(
            namespace=namespace,
            run=run,
            uid=f"uid-{run}",
            base_model=base,
            rank=asked.rank or 32,
            created_at=datetime.now(UTC),
            user_metadata=asked.user_metadata,
            phase=Phase.running,
        )
        made = self.models.setdefault((namespace, run), made)
        if made.rank != (asked.rank or made.rank):
            raise ProblemError.of(409, Reason.CLIENT_MODEL_CONFLICT, f"{run} has another rank")
        return self._current(made)

    async def _read(self, request: Request, _: str) -> Schema:
        model = self._model(request)
        return self._current(model).model_copy(update={"saved": self.trainer.names.get(model.uid, SavedStates())})

    async def _open(self, request: Request, _: str) -> Schema:
        model = self._current(self._model(request))
        token = self.token_of(model.uid)
        if model.trainer_url:
            self.trainer.tokens[model.uid] = token
            self.pool.add(model.uid, token, uri_of(model.uid))
        return model.model_copy(update={"token": token, "run_uri": uri_of(model.uid)})

    async def _delete(self, request: Request, _: str) -> None:
        states = self.trainer.names.get(self._model(request).uid, SavedStates())
        if states.of(SaveKind(request.path_params["kind"])).pop(request.path_params["name"], None) is None:
            raise ProblemError.of(404, Reason.OBJECT_NOT_FOUND, "the state does not exist")

    async def _set_ttl(self, request: Request, _: str) -> None:
        states = self.trainer.names.get(self._model(request).uid, SavedStates())
        state = states.of(SaveKind(request.path_params["kind"])).get(request.path_params["name"])
        if state is None:
            raise ProblemError.of(404, Reason.OBJECT_NOT_FOUND, "the state does not exist")
        seconds = parse(SavedStateTtl, await request.body()).ttl_seconds
        state.expires_at = None if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds)

    async def _base_models(self, _request: Request, _: str) -> Response:
        dedicated = {"id": "own/trainers", "name": "own", "seqLen": 4096, "shared": False}
        return JSONResponse({"items": [dedicated, {"id": MODEL, "seqLen": 4096, "shared": True, "newer": 1}]})

    async def _identity(self, _request: Request, namespace: str) -> Response:
        return JSONResponse({"name": f"account of {namespace}", "groups": []})

    def _for_caller(self, handler: Callable[[Request, str], Any]) -> Handler:
        async def handle(request: Request) -> Response:
            self.requests.append((request.method, request.url.path, await request.body()))
            await asyncio.sleep(self.delay)
            if self.failure is not None:
                status, problem = self.failure
                return json_response(problem, status)
            namespace = KEYS.get(bearer_of(request))
            if namespace is None:
                raise ProblemError.of(401, "Unauthorized", "the API key is not valid")
            if request.path_params.get("namespace", namespace) != namespace:
                raise ProblemError.of(403, Reason.ACCESS_FORBIDDEN, "you may not read rlruns there")
            answer = await handler(request, namespace)
            if answer is None:
                return Response(status_code=204)
            return answer if isinstance(answer, Response) else json_response(answer)

        return handle

    def app(self) -> Starlette:
        """Return the application."""
        routes = {
            ("POST", CLIENT_SESSIONS_PATH): self._session,
            ("PUT", CLIENT_MODEL_PATH): self._create,
            ("GET", CLIENT_MODEL_PATH): self._read,
            ("POST", f"{CLIENT_MODEL_PATH}/open"): self._open,
            ("DELETE", CLIENT_SAVE_PATH): self._delete,
            ("PUT", f"{CLIENT_SAVE_PATH}/ttl"): self._set_ttl,
            ("GET", "/rlrun/v1/models"): self._base_models,
            ("GET", "/rlrun/v1/whoami"): self._identity,
        }
        return Starlette(
            routes=[
                Route(path, Endpoint(self._for_caller(handler)), methods=[method])
                for (method, path), handler in routes.items()
            ]
        )


@dataclass
class TinkerBackend:
    """rlrun-tinker between a client and both fakes, all over TCP."""

    server: FakeRunServer
    trainer: FakeTrainer
    pool: FakePool
    client: httpx.AsyncClient
    url: str
    api: TinkerApi
    now: list[float]
    """Time of the clock, which only tests move."""

    async def post(self, path: str, body: Any = None, key: str = "tml-ann", **others: Any) -> httpx.Response:
        """Send a request."""
        return await self.client.post(f"/api/v1/{path}", json=body or {}, headers={"X-API-Key": key}, **others)

    async def send(self, path: str, body: bytes, key: str = "tml-ann", **headers: str) -> httpx.Response:
        """Send a protobuf request."""
        sent = {"X-API-Key": key, "Content-Type": "application/x-protobuf", **headers}
        return await self.client.post(f"/api/v1/{path}", content=body, headers=sent)

    async def model(self, number: int = 0, **lora: Any) -> str:
        """Create a session and a model, and return the model's id."""
        session = (await self.post("create_session", {"tags": []})).json()["session_id"]
        body = {"session_id": session, "model_seq_id": number, "base_model": MODEL, "lora_config": {"rank": 8, **lora}}
        answer = await self.post("create_model", body)
        assert answer.status_code == 200, answer.text
        assert (await self.retrieve(answer)).status_code == 200
        return f"{session}:train:{number}"

    async def retrieve(self, answer: httpx.Response, key: str = "tml-ann", **body: Any) -> httpx.Response:
        """Return the response with the result of a future."""
        assert answer.status_code == 200, answer.text
        return await self.post("retrieve_future", {"request_id": answer.json()["request_id"], **body}, key)


@asynccontextmanager
async def serving_tinker(
    poll_seconds: float = 0.2, run_server: ASGIApp | None = None, pool: FakePool | None = None
) -> AsyncIterator[TinkerBackend]:
    """Serve rlrun-tinker and its fakes while the context is open. `run_server` takes the place of the fake. `pool` has
    the engines.
    """
    trainer = FakeTrainer()
    server = FakeRunServer(trainer, pool or FakePool())
    now = [0.0]
    sockets = [listen("127.0.0.1", 0) for _ in range(3)]
    trainer.url, server.url, url = (f"http://127.0.0.1:{each[0].getsockname()[1]}" for each in sockets)
    callers, trainers, http = Callers(lambda: now[0]), PoolTrainerClient(), HttpClient(10)
    engines = EngineRegistry(resolve=server.pool.resolve)
    api = TinkerApi(
        callers,
        RunServer(server.url, http, callers),
        trainers,
        lambda: now[0],
        send_seconds=poll_seconds,
        futures=lambda *parts: Futures(parts[0], parts[1], parts[2], poll_seconds),
        engines=engines,
        samples=SampleFutures(lambda: now[0], poll_seconds),
    )
    try:
        async with (
            serving_on(trainer.app(), sockets[0]),
            serving_on(run_server or server.app(), sockets[1]),
            serving_on(tinker_app(api), sockets[2]),
            httpx.AsyncClient(base_url=url, timeout=30) as client,
        ):
            yield TinkerBackend(server, trainer, server.pool, client, url, api, now)
    finally:
        api.close()
        await trainers.close()
        await engines.close()
        await http.close()
