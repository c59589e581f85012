"""Routes of the Tinker API."""

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from rlrun.api.base.received import InputInvalid, parse
from rlrun.constants import Reason
from rlrun.protocol.client_command import CommandHeader, OptimStep, SaveState, frame
from rlrun.protocol.client_run import ClientModel, ModelId, SavedState, SavedStateUri, SaveKind, SessionId
from rlrun.service.errors import ProblemError
from rlrun.service.tenant_quota import QuotaResult, TenantQuota
from rlrun_server.http.body import BODY_SECONDS, read_body, too_large
from rlrun_server.http.client_memory import ByteBudget, ClientMemory, CountedAnswer, CountedBody, WithMemory
from rlrun_server.http.disconnect import ClientLeft, until_left
from rlrun_server.http.request import client_of
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rlrun_tinker.callers import Callers, CredentialHolder
from rlrun_tinker.engine_registry import EngineRegistry
from rlrun_tinker.errors import RETRYABLE, TinkerError
from rlrun_tinker.forward_backward import ForwardBackwardRequest, decode_request
from rlrun_tinker.futures import PAUSES, PROTOBUF, FutureId, FutureKind, Futures, end_of, waiting_reason
from rlrun_tinker.metrics import BODIES, REGISTRY, REQUESTS, SAMPLES
from rlrun_tinker.open_models import Heartbeats, OpenModels
from rlrun_tinker.pool_trainer_client import CommandRejected, PoolTrainerClient, TrainerUnready
from rlrun_tinker.requests import (
    CreateModel,
    CreateSession,
    LoadWeights,
    NumberedRequest,
    OfModel,
    OfSession,
    OptimStepRequest,
    RetrieveFuture,
    SaveWeights,
    TinkerRequest,
    TtlRequest,
    WeightsInfo,
    parse_id,
)
from rlrun_tinker.run_server import RunServer
from rlrun_tinker.sample_futures import SampleFutures, is_sample
from rlrun_tinker.sampling import SamplingApi

PREFIX = "/api/v1"
SHARED_HOST_PREFIX = "/tinker"
"""Prefix before PREFIX on a host shared with rlrun-server, which serves Prime Intellect's API under PREFIX as well."""
MAX_BODY = 16 * 1024**2
"""Maximum size of a forward_backward request in bytes. The SDK divides batches into requests of about 5 MB, but a
single datum may be larger.
"""
MAX_JSON = 256 * 1024
MAX_TELEMETRY = 8 * 1024**2
BODY_BYTES = (128 * 1024**2, 33 * 1024**2)
"""Maximum total size in bytes of requests in memory, for all clients and for one client. A request takes up to three
times its size: as received, as a command, and in the connection to the trainer.
"""
ANSWER_BYTES = (96 * 1024**2, 40 * 1024**2)
"""Maximum total size in bytes of responses that clients have not received yet, for all clients and for one client."""
FEW_BYTES = 16 * 1024
"""Size in bytes up to which decoding takes less time than a handover to a thread."""
BEGINNING_SECONDS = 2.0
"""Time limit in seconds for the first bytes of a request that is too large."""
SEND_SECONDS = 15.0
"""Maximum wait in seconds until a trainer accepts a command. The SDK sends the next command after the response, and
times out after 60 s.
"""
RETRIEVE_SECONDS = 40.0
"""Time limit of retrieve_future in seconds. The SDK times out after 45 s."""
REQUESTS_PER_CALLER = 2200
"""Maximum number of concurrent requests of a client. A client waits for each result with a separate request, and the
SDK waits for up to 2000 samples at the same time.
"""
CLIENT_CONFIG = {
    # A program sends at most this many bytes of batches at the same time.
    "fwdbwd_dispatch_bytes_semaphore_size": 20_000_000,
    "proto_compress_fwdbwd": False,
    "custom_loss_server_side": False,
    "pjwt_auth_enabled": False,
    "sample_use_retrieve_futures": False,
    "sample_join_sampling_session": False,
}
DYNAMIC_CONFIG = {
    "refresh_interval_sec": 300,
    "sample_cancel_enabled": True,
    "sample_cancel_max_batch_size": 64,
}
REJECTED = b"rejected by rlrun-tinker"
"""Body that the trainer receives instead of a rejected call's command. It is not a valid command."""
SESSION_WARNING = (
    "train_unembed=True, the SDK's default, has no effect on this server: LoRA adapts the layers that the base model's "
    "RLModel names, by default all linear layers of attention and MLP."
)
NEEDS_SDK = "Only older SDKs send this request. Install tinker 0.38 or later: pip install --upgrade tinker"

log = logging.getLogger(__name__)

M = TypeVar("M", bound=TinkerRequest)
Handler = Callable[[Request], Awaitable[Response]]
CallerHandler = Callable[[Request, CredentialHolder], Awaitable[Response]]


class TinkerEndpoint:
    """ASGI application that calls one handler. All errors have a JSON body, which the SDK shows."""

    def __init__(self, route: str, handler: Handler) -> None:
        """`route` is the name of the route in metrics."""
        self._route = route
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request. Unexpected exceptions are logged with their traceback."""
        request = Request(scope, receive)
        try:
            response = await self._handler(request)
        except TinkerError as error:
            response = error.response()
        except ProblemError as error:
            response = TinkerError(error.status, error.problem.message).response()
        except InputInvalid as error:
            response = TinkerError(400, str(error)).response()
        except ClientLeft:
            response = Response(status_code=499)
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            response = TinkerError(500, "Internal error of rlrun-tinker: see its log.").response()
        REQUESTS.labels(self._route, str(response.status_code)).inc()
        answer = CountedAnswer(request, send, _no_memory)
        try:
            await response(scope, receive, answer.send)
        finally:
            answer.release()


def _no_memory(_: Request) -> Response:
    # The SDK repeats retrieve_future after 503 without a pause.
    return TinkerError(
        429, "Too many large responses are waiting to be read. Read them, then retry the request."
    ).response()


class TinkerApi:
    """Handlers of the Tinker API, which turn its requests into requests to rlrun-server, trainers and engines."""

    def __init__(
        self,
        callers: Callers,
        server: RunServer,
        trainers: PoolTrainerClient,
        clock: Callable[[], float],
        *,
        max_requests: int = 750,
        send_seconds: float = SEND_SECONDS,
        futures: Callable[[RunServer, OpenModels, PoolTrainerClient], Futures] = Futures,
        engines: EngineRegistry,
        samples: SampleFutures | None = None,
    ) -> None:
        """`max_requests` is the maximum number of concurrent requests with credentials. `send_seconds` is the maximum
        wait until a trainer accepts a command.
        """
        self._callers = callers
        self._server = server
        self._trainers = trainers
        self._send_seconds = send_seconds
        self._models = OpenModels(server, clock)
        self._heartbeats = Heartbeats(server, self._models, trainers, clock)
        self._futures = futures(server, self._models, trainers)
        self._samples = samples or SampleFutures(clock)
        self._sampling = SamplingApi(
            callers, server, self._models, self._heartbeats, trainers, self._samples, engines, clock
        )
        self._quota = TenantQuota(REQUESTS_PER_CALLER, max_requests)
        self._leaving = asyncio.Event()
        self._decoding = ThreadPoolExecutor(2, "decoding")
        self._decoding_of: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def leave(self) -> None:
        """Stop waiting in all requests, so that clients repeat them on another replica."""
        self._leaving.set()
        self._samples.leave()

    def close(self) -> None:
        """Stop the threads, and cancel all samples."""
        self._samples.close()
        self._decoding.shutdown(wait=False, cancel_futures=True)

    @property
    def sample_requests(self) -> int:
        """Number of requests for samples that are in progress."""
        return self._samples.in_progress

    def routes(self) -> list[Route]:
        """Return all routes."""
        checkpoints = "/training_runs/{model}/checkpoints/{kind}/{name}"
        public: dict[tuple[str, str], Handler] = {
            ("GET", "/healthz"): _constant({"status": "ok"}),
            ("POST", "/client/config"): _discard(CLIENT_CONFIG),
            ("POST", "/client/dynamic_config"): _discard(DYNAMIC_CONFIG),
            ("POST", "/telemetry"): _discard({"status": "accepted"}),
            ("POST", "/sessions/{session}/finish"): _discard(None),
            ("POST", "/forward"): _refusal(400, NEEDS_SDK),
            ("POST", "/unload_model"): _refusal(400, NEEDS_SDK),
        }
        private: dict[tuple[str, str], CallerHandler] = {
            ("GET", "/get_server_capabilities"): self._capabilities,
            ("POST", "/create_session"): self._create_session,
            ("POST", "/session_heartbeat"): self._heartbeat,
            ("POST", "/create_model"): self._create_model,
            ("POST", "/load_weights"): self._load_weights,
            ("POST", "/get_info"): self._get_info,
            ("POST", "/forward_backward"): self._forward_backward,
            ("POST", "/optim_step"): self._optim_step,
            ("POST", "/save_weights"): self._save_weights,
            ("POST", "/save_weights_for_sampler"): self._save_weights_for_sampler,
            ("POST", "/save_weights_external"): self._save_weights_external,
            ("POST", "/retrieve_future"): self._retrieve_future,
            ("POST", "/create_sampling_session"): self._sampling.create_session,
            ("GET", "/samplers/{sampler}"): self._sampling.get_sampler,
            ("POST", "/asample"): self._sampling.sample,
            ("POST", "/cancel_future"): self._sampling.cancel,
            ("POST", "/weights_info"): self._weights_info,
            ("GET", "/training_runs/{model}"): self._training_run,
            ("DELETE", checkpoints): self._delete_checkpoint,
            ("PUT", f"{checkpoints}/ttl"): self._set_ttl,
        }
        handlers = public | {key: self._identified(handler) for key, handler in private.items()}
        return [
            Route(PREFIX + path, TinkerEndpoint(path, handler), methods=[method])
            for (method, path), handler in handlers.items()
        ]

    def _identified(self, handler: CallerHandler) -> Handler:
        """Return a handler that identifies the caller, and limits the caller's concurrent requests."""

        async def handle(request: Request) -> Response:
            caller = self._callers.identify(request)
            is_known = self._callers.is_accepted(caller)
            if is_known:
                request.state.limited_as = caller.digest
            # Anyone can make up any number of credentials.
            owner = caller.digest if is_known else f"address {client_of(request)}"
            if self._quota.take(owner) is not QuotaResult.granted:
                raise TinkerError(429, "Too many requests are in progress. Wait for results before you send more.")
            try:
                return await handler(request, caller)
            finally:
                self._quota.release(owner)
                if not is_known and self._callers.is_accepted(caller):
                    self._callers.give_back(request)

        return handle

    async def _capabilities(self, _: Request, caller: CredentialHolder) -> Response:
        found = await self._server.base_models(caller)
        models = [
            {"model_name": model.id, "max_context_length": model.seqLen, "trainable": True, "sampleable": True}
            for model in found.items
            if model.shared
        ]
        return JSONResponse({"supported_models": models})

    async def _create_session(self, request: Request, caller: CredentialHolder) -> Response:
        body = await _read(request, CreateSession)
        place = await self._server.new_session(caller, body.project_id)
        session = SessionId(f"ts-{secrets.token_hex(6)}", place.namespace)
        answer = {"type": "create_session", "session_id": str(session), "warning_message": SESSION_WARNING}
        return JSONResponse(answer)

    async def _heartbeat(self, request: Request, caller: CredentialHolder) -> Response:
        body = await _read(request, OfSession)
        await self._heartbeats.beat(caller, body.session)
        return JSONResponse({"type": "session_heartbeat"})

    async def _create_model(self, request: Request, caller: CredentialHolder) -> Response:
        body = await _read(request, CreateModel)
        return await self._create(caller, body, FutureKind.create)

    async def _load_weights(self, request: Request, caller: CredentialHolder) -> Response:
        # TrainingClient.load_state, whose call has a number, is rejected.
        async with self._numbered_body(request, caller) as data:
            return await self._create(caller, _parse(LoadWeights, data), FutureKind.load)

    async def _create(self, caller: CredentialHolder, body: CreateModel | LoadWeights, kind: FutureKind) -> Response:
        model = body.model
        await self._server.create(caller, model, body.to_new_model())
        self._heartbeats.remember(caller, model)
        return FutureId(kind, model).response()

    async def _get_info(self, request: Request, caller: CredentialHolder) -> Response:
        body = await _read(request, OfModel)
        found = await self._server.read(caller, body.model)
        answer = {
            "type": "get_info",
            "model_id": str(body.model),
            "model_name": found.base_model,
            # The SDK loads the tokenizer of this name.
            "model_data": {"model_name": found.base_model},
            **_lora(found),
        }
        return JSONResponse(answer)

    async def _forward_backward(self, request: Request, caller: CredentialHolder) -> Response:
        if _media_type(request) != PROTOBUF:
            raise TinkerError(400, f"Send forward_backward as {PROTOBUF}. {NEEDS_SDK}")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise TinkerError(400, "Compressed bodies are not supported. Send the body without Content-Encoding.")
        if not self._callers.is_accepted(caller):
            # An unknown client's body would be received and decoded before anything else asks rlrun-server.
            await self._server.check(caller)
            request.state.limited_as = caller.digest
        held, decoded = CountedBody(request), ForwardBackwardRequest()
        try:
            try:
                body = await read_body(request, MAX_BODY, held=held)
            except ProblemError as error:
                if error.problem.reason == Reason.BODY_TOO_LARGE and "Content-Length" in request.headers:
                    await self._use_number_of_large(request, caller)
                raise
            try:
                if len(body) <= FEW_BYTES:
                    command = _decode(body, decoded)
                else:
                    command = await self._decode_aside(caller, body, decoded)
            except InputInvalid:
                await self._use_number(caller, decoded.model_id, decoded.seq)
                raise
            model, seq = parse_id(ModelId.parse, decoded.model_id), decoded.seq
            if seq < 1:
                raise InputInvalid("`seq_id`", "must be 1 or greater.")
            # The command is a copy of the body.
            del body, decoded
            await self._send(caller, model, seq, command)
        finally:
            held.release()
        return FutureId(FutureKind.forward_backward, model, seq).response()

    async def _decode_aside(self, caller: CredentialHolder, body: bytes, decoded: ForwardBackwardRequest) -> bytes:
        """Decode a body in a thread. Only one body per caller is decoded at a time, so that no caller keeps all threads
        busy.
        """
        async with self._decoding_of.setdefault(caller.digest, asyncio.Lock()):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._decoding, _decode, body, decoded)

    async def _optim_step(self, request: Request, caller: CredentialHolder) -> Response:
        async with self._numbered_body(request, caller) as data:
            body = _parse(OptimStepRequest, data)
            command = body.to_command()
        await self._send(caller, body.model, body.seq_id, _frame(command))
        return FutureId(FutureKind.optim_step, body.model, body.seq_id).response()

    async def _save_weights(self, request: Request, caller: CredentialHolder) -> Response:
        return await self._save(request, caller, SaveKind.weights)

    async def _save_weights_for_sampler(self, request: Request, caller: CredentialHolder) -> Response:
        return await self._save(request, caller, SaveKind.sampler_weights)

    async def _save(self, request: Request, caller: CredentialHolder, saved_as: SaveKind) -> Response:
        async with self._numbered_body(request, caller) as data:
            body = _parse(SaveWeights, data)
            command = body.to_command(saved_as)
        await self._send(caller, body.model, body.seq_id, _frame(command))
        kind = FutureKind.policy if command.name is None else FutureKind[saved_as.name]
        return FutureId(kind, body.model, body.seq_id, command.name or "").response()

    async def _save_weights_external(self, request: Request, caller: CredentialHolder) -> Response:
        body = await _read(request, NumberedRequest)
        await self._use_number(caller, body.model_id, body.seq_id)
        message = "This server does not export weights. Use save_weights_for_sampler(name), which saves an RLAdapter."
        raise TinkerError(404, message)

    @asynccontextmanager
    async def _numbered_body(self, request: Request, caller: CredentialHolder) -> AsyncIterator[bytes]:
        """Yield the body of a call. Uses up the call's sequence number if the context raises InputInvalid."""
        data = await read_body(request, MAX_JSON)
        try:
            yield data
        except InputInvalid:
            with contextlib.suppress(InputInvalid):
                call = parse(NumberedRequest, data)
                await self._use_number(caller, call.model_id, call.seq_id)
            raise

    async def _use_number_of_large(self, request: Request, caller: CredentialHolder) -> None:
        """Use up the number of a forward_backward request that is too large. The first bytes of the body have it."""
        beginning, decoded = b"", ForwardBackwardRequest()
        with contextlib.suppress(ClientDisconnect, TimeoutError):
            async with asyncio.timeout(BEGINNING_SECONDS):
                async for chunk in request.stream():
                    beginning += chunk
                    if len(beginning) >= FEW_BYTES:
                        break
        with contextlib.suppress(InputInvalid):
            decode_request(beginning, decoded)
        await self._use_number(caller, decoded.model_id, decoded.seq)

    async def _use_number(self, caller: CredentialHolder, model_id: str, seq: int) -> None:
        """Send REJECTED with the sequence number of a rejected call, because later calls would wait for this number."""
        with contextlib.suppress(TinkerError):
            if seq >= 1:
                await self._try_to_send(caller, parse_id(ModelId.parse, model_id), seq, REJECTED)

    async def _send(self, caller: CredentialHolder, model: ModelId, seq: int, command: bytes) -> None:
        """Send a command to the trainer. Errors with a status in RETRYABLE, for example while the trainer is not
        ready, are retried for at most `send_seconds`. Raises TinkerError.
        """
        deadline = asyncio.get_running_loop().time() + self._send_seconds
        pauses = iter(PAUSES)
        while True:
            try:
                await self._try_to_send(caller, model, seq, command)
                return
            except TinkerError as error:
                left = deadline - asyncio.get_running_loop().time()
                if error.status not in RETRYABLE or left <= 0 or self._leaving.is_set():
                    raise
            await asyncio.sleep(min(left, next(pauses, PAUSES[-1])))

    async def _try_to_send(self, caller: CredentialHolder, model: ModelId, seq: int, command: bytes) -> None:
        opened = await self._models.open(caller, model)
        self._heartbeats.remember(caller, model)
        if opened.has_ended:
            raise TinkerError(400, end_of(opened))
        if opened.trainer_url is None:
            reason = waiting_reason(opened) or "it waits for its trainer"
            raise TinkerError(408, f"The run {opened.namespace}/{opened.run} is paused: {reason}")
        try:
            await self._trainers.send(opened, seq, command)
        except TrainerUnready as error:
            self._models.forget(caller, model)
            reason = waiting_reason(opened) or str(error)
            message = f"The trainer did not accept the request: {reason.rstrip('.')}."
        except CommandRejected as rejected:
            if rejected.status == 429 or rejected.status >= 500:
                raise TinkerError(min(rejected.status, 503), rejected.problem.message) from None
            if rejected.status == 408:
                # The trainer did not receive the body in time. 400 would end the program.
                raise TinkerError(503, rejected.problem.message) from None
            # The SDK would repeat a request that is rejected with 409.
            raise TinkerError(400, rejected.problem.message) from None
        else:
            return
        raise TinkerError(503, message)

    async def _retrieve_future(self, request: Request, caller: CredentialHolder) -> Response:
        body = await _read(request, RetrieveFuture)
        is_first = body.allow_metadata_only
        if is_sample(body.request_id):
            retrieving = self._samples.retrieve(caller, body.request_id, allow_metadata_only=is_first)
        else:
            future = parse_id(FutureId.parse, body.request_id)
            retrieving = self._futures.retrieve(caller, future, self._leaving, allow_metadata_only=is_first)
        deadline = asyncio.get_running_loop().time() + RETRIEVE_SECONDS
        try:
            return await until_left(request.receive, retrieving, deadline)
        except TimeoutError:
            raise TinkerError(408, "rlrun-server or the trainer does not respond.") from None

    async def _weights_info(self, request: Request, caller: CredentialHolder) -> Response:
        state = parse_id(SavedStateUri.parse, (await _read(request, WeightsInfo)).tinker_path)
        found = await self._server.read(caller, state.model)
        if found.saved is None or state.name not in found.saved.of(state.kind):
            raise TinkerError(404, f"{state} does not exist: it was never saved, was deleted or has expired.")
        flags = {"train_unembed": False, "train_mlp": True, "train_attn": True}
        return JSONResponse({"base_model": found.base_model, **_lora(found), **flags})

    async def _training_run(self, request: Request, caller: CredentialHolder) -> Response:
        model = parse_id(ModelId.parse, request.path_params["model"])
        found = await self._server.read(caller, model)
        newest = {kind: _newest(found, model, kind) for kind in SaveKind}
        times = [found.created_at, *(state.time for _, state in filter(None, newest.values()))]
        answer: dict[str, Any] = {
            "training_run_id": str(model),
            "base_model": found.base_model,
            "model_owner": found.namespace,
            "corrupted": False,
            "last_request_time": max(times).isoformat(),
            "user_metadata": {name: _plain(value) for name, value in found.user_metadata.items()},
            **_lora(found),
        }
        names = {SaveKind.weights: "last_checkpoint", SaveKind.sampler_weights: "last_sampler_checkpoint"}
        answer |= {names[kind]: _checkpoint(*state) for kind, state in newest.items() if state is not None}
        return JSONResponse(answer)

    async def _delete_checkpoint(self, request: Request, caller: CredentialHolder) -> Response:
        await self._server.delete(caller, _state_of(request))
        return Response(status_code=204)

    async def _set_ttl(self, request: Request, caller: CredentialHolder) -> Response:
        body = await _read(request, TtlRequest)
        await self._server.set_ttl(caller, _state_of(request), body.to_ttl())
        return Response(status_code=204)


def _state_of(request: Request) -> SavedStateUri:
    """Return the saved state in the request's path. Raises InputInvalid."""
    place = request.path_params
    return parse_id(SavedStateUri.parse, f"tinker://{place['model']}/{place['kind']}/{place['name']}")


def _decode(body: bytes, request: ForwardBackwardRequest) -> bytes:
    """Decode the body into `request`, and return the command for the trainer. Raises InputInvalid."""
    return decode_request(body, request).command()


def _frame(command: OptimStep | SaveState) -> bytes:
    return frame(CommandHeader(command=command))


def _lora(model: ClientModel) -> dict[str, Any]:
    return {"is_lora": True, "lora_rank": model.rank}


def _newest(found: ClientModel, model: ModelId, kind: SaveKind) -> tuple[SavedStateUri, SavedState] | None:
    states = {} if found.saved is None else found.saved.of(kind)
    if not states:
        return None
    name = max(states, key=lambda each: states[each].step)
    return SavedStateUri(model, kind, name), states[name]


def _checkpoint(uri: SavedStateUri, state: SavedState) -> dict[str, Any]:
    return {
        "checkpoint_id": f"{uri.kind.value}/{uri.name}",
        "checkpoint_type": "training" if uri.kind is SaveKind.weights else "sampler",
        "time": state.time.isoformat(),
        "tinker_path": str(uri),
        "public": False,
        "expires_at": None if state.expires_at is None else state.expires_at.isoformat(),
    }


def _plain(value: Any) -> str:
    """Return a value of user metadata as text, because the SDK accepts no other type in a training run."""
    return value if isinstance(value, str) else json.dumps(value)


def _media_type(request: Request) -> str:
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower()


async def _read(request: Request, model: type[M]) -> M:
    return _parse(model, await read_body(request, MAX_JSON))


def _parse(model: type[M], data: bytes) -> M:
    return parse(model, data or b"{}", is_user_input=True)


def _constant(content: Any) -> Handler:
    async def handle(_: Request) -> Response:
        return JSONResponse(content)

    return handle


def _refusal(status: int, message: str) -> Handler:
    async def handle(_: Request) -> Response:
        raise TinkerError(status, message)

    return handle


def _discard(content: Any) -> Handler:
    """Return a handler that ignores the request's body. It responds with `content`, or with status 204 if `content` is
    None.
    """

    async def handle(request: Request) -> Response:
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > MAX_TELEMETRY:
                        raise too_large(MAX_TELEMETRY)
        except TimeoutError:
            raise TinkerError(408, f"The body did not arrive within {BODY_SECONDS:.0f} s. Send it again.") from None
        except ClientDisconnect:
            raise ClientLeft from None
        return Response(status_code=204) if content is None else JSONResponse(content)

    return handle


def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:200]} is not available on this server."
    REQUESTS.labels("other", str(error.status_code)).inc()
    return TinkerError(error.status_code, message).response()


def tinker_app(api: TinkerApi) -> ASGIApp:
    """Return the application for clients."""
    memory = ClientMemory(ByteBudget(*BODY_BYTES), ByteBudget(*ANSWER_BYTES))
    BODIES.set_function(lambda: memory.bodies.held)
    SAMPLES.set_function(lambda: api.sample_requests)
    app = Starlette(routes=api.routes(), exception_handlers={HTTPException: _on_http})
    app.router.redirect_slashes = False

    async def without_prefix(scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", ""))
        if path.startswith(f"{SHARED_HOST_PREFIX}/"):
            scope = {**scope, "path": path.removeprefix(SHARED_HOST_PREFIX)}
        await app(scope, receive, send)

    return WithMemory(without_prefix, memory)


def probes_app(ready: Callable[[], bool]) -> ASGIApp:
    """Return the application for probes and metrics."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        return PlainTextResponse("ok\n") if ready() else PlainTextResponse("ending", 503)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})

    routes = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics}
    return Starlette(routes=[Route(path, answer) for path, answer in routes.items()])
