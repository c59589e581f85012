"""Completions from deployed models. Relays a client's request to an engine, and the response to the client."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import aiohttp
from rlrun.api.base.received import InputInvalid, InputLimits, read_fast
from starlette.requests import Request
from starlette.responses import Response

from rlrun_server.authentication.users import User
from rlrun_server.http.body import read_body
from rlrun_server.http.disconnect import ClientLeft, until_left
from rlrun_server.inference.capacity import Capacity, HeldBytes
from rlrun_server.inference.completion_request import read_request, rewrite_request
from rlrun_server.inference.deployed_models import DeployedModel, DeployedModels
from rlrun_server.inference.errors import InferenceError
from rlrun_server.inference.event_stream import EventSplitter
from rlrun_server.inference.model_access import ModelAccess
from rlrun_server.inference.pool_client import EngineAnswer, PoolClient
from rlrun_server.inference.relayed_stream import RelayedStream
from rlrun_server.inference.usage import IN_PROGRESS, RequestRecord, read_usage
from rlrun_server.rest.base.tenant_queue import TenantQueue

JSON, EVENTS = "application/json", "text/event-stream"
MAX_BODY = 1024 * 1024
MAX_ANSWER = 4 * 1024 * 1024
ANSWER_LIMITS = InputLimits(size=MAX_ANSWER, values=1_000_000)
"""Limits of an engine's response, which may contain log-probabilities of each token."""
FEW_BYTES = 16 * 1024
"""Size in bytes up to which parsing takes less time than the transfer to a thread."""
MAX_REFUSAL = 64 * 1024
MAX_MESSAGE = 2000
MAX_SECONDS = 600.0
"""Time limit for a request in seconds, from its headers to the last byte of the response."""
CLIENT_LEFT = 499
"""Status in the log for a request whose client disconnected."""
PASSED_STATUSES = frozenset({400, 413, 422, 429})
"""Statuses of an engine that concern the client's request and are passed on to the client."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Completions:
    """Handler of requests for completions. Rejections are InferenceError, RestError and ProblemError."""

    work: TenantQueue
    """Thread pool for parsing bodies and responses."""
    models: DeployedModels
    access: ModelAccess
    pools: PoolClient
    capacity: Capacity
    clock: Callable[[], float]
    max_seconds: float = MAX_SECONDS
    names_tenants: bool = False
    """True if the server's metrics contain the names of namespaces and adapters."""

    async def answer(self, request: Request, user: User, path: str) -> Response:
        """Return the response to a request for `path` below `/v1`."""
        deadline = asyncio.get_running_loop().time() + self.max_seconds
        async with AsyncExitStack() as stack:
            held = stack.enter_context(self.capacity.request(user.limited_as))
            stack.enter_context(_in_progress())
            body = await self._body(request, held)
            asked = await self._run(user, len(body), read_request, body)
            model = await self.access.find(user, asked.model)
            self._require_ready(model)
            sent = await self._run(user, len(body), rewrite_request, body, model.served_name)
            held.add(len(sent))
            record = stack.enter_context(RequestRecord(model, self.clock, names_tenants=self.names_tenants))
            try:
                answer = await until_left(request.receive, self.pools.post(model, path, sent), deadline)
                stack.callback(answer.close)
                del body, sent
                held.release()
                if answer.status != 200:
                    raise await until_left(request.receive, self._refusal(model, answer, record), deadline)
                if answer.media_type != (EVENTS if asked.stream else JSON):
                    raise engine_failed(model, f"responded with Content-Type {answer.media_type[:80]!r}")
                if asked.stream:
                    events = EventSplitter(wants_usage=asked.wants_usage)
                    return RelayedStream(answer, events, record, deadline, stack.pop_all())
                content = await until_left(request.receive, self._content(user, model, answer, held, record), deadline)
            except ClientLeft:
                record.outcome = "left"
                return Response(status_code=CLIENT_LEFT)
            except TimeoutError as error:
                raise too_slow(self.max_seconds) from error
            return Response(content, 200, media_type=JSON)

    async def _run(self, user: User, size: int, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a call that parses `size` bytes. Runs in a thread if `size` exceeds FEW_BYTES."""
        return (
            call(*args, **kwargs) if size <= FEW_BYTES else await self.work.run(user.limited_as, call, *args, **kwargs)
        )

    async def _body(self, request: Request, held: HeldBytes) -> bytes:
        media_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if media_type != JSON:
            message = f"The Content-Type {media_type[:80]!r} is not supported. Send {JSON}."
            raise InferenceError(415, "media_type_unsupported", message)
        body = await read_body(request, MAX_BODY)
        held.add(len(body))
        return body

    def _require_ready(self, model: DeployedModel) -> None:
        if not model.is_ready:
            cause = self.models.message(model) or "The operator has not deployed the adapter yet."
            message = (
                f"{model.own_name} is not ready: {cause} Retry the request later, or check the adapter's state: rlrun "
                f"adapters list -n {model.namespace}"
            )
            raise InferenceError(503, "model_not_ready", message, "model")

    async def _content(
        self, user: User, model: DeployedModel, answer: EngineAnswer, held: HeldBytes, record: RequestRecord
    ) -> bytes:
        content = await _read(model, answer, MAX_ANSWER, held)
        parsed = await self._run(user, len(content), _parse, content)
        if not isinstance(parsed, dict):
            raise engine_failed(model, "did not return JSON")
        record.outcome, record.usage = "ok", read_usage(parsed)
        return content

    async def _refusal(self, model: DeployedModel, answer: EngineAnswer, record: RequestRecord) -> InferenceError:
        """Return the error for an engine's error response. Of its body, only the message and `param` are passed on."""
        if answer.status == 404:
            message = (
                f"The engines of {model.own_name} have not loaded the model yet. Retry the request in a few seconds."
            )
            return InferenceError(503, "model_not_ready", message, "model")
        if answer.status not in PASSED_STATUSES:
            return engine_failed(model, f"responded with status {answer.status}")
        record.outcome = "refused"
        document = _parse(await _read(model, answer, MAX_REFUSAL))
        error = document.get("error") if isinstance(document, dict) else None
        fields = error if isinstance(error, dict) else document if isinstance(document, dict) else {}
        message = str(fields.get("message") or "The engine rejected the request.")[:MAX_MESSAGE]
        param = fields.get("param")
        return InferenceError(
            answer.status, "engine_refused", message, param[:MAX_MESSAGE] if isinstance(param, str) else None
        )


def engine_failed(model: DeployedModel, what: str) -> InferenceError:
    """Return the error for a failed engine. `what` is the predicate of the message, such as `closed the connection`."""
    message = f"The engine of {model.own_name} {what}. Retry the request; the engine pod's log shows the cause."
    return InferenceError(502, "engine_failed", message)


def too_slow(seconds: float) -> InferenceError:
    """Return the error for a request that took longer than `seconds`."""
    message = f"The response was not complete within {seconds:.0f} s. Request fewer tokens (`max_tokens`)."
    return InferenceError(504, "timeout", message)


@contextmanager
def _in_progress() -> Iterator[None]:
    with IN_PROGRESS.track_inprogress():
        yield


async def _read(model: DeployedModel, answer: EngineAnswer, limit: int, held: HeldBytes | None = None) -> bytes:
    data = bytearray()
    try:
        async for chunk in answer.chunks():
            if held is not None:
                held.add(len(chunk))
            data += chunk
            if len(data) > limit:
                message = (
                    f"The response exceeds {limit} bytes. Request fewer tokens, omit `logprobs`, or set `stream: true`."
                )
                raise InferenceError(502, "answer_too_large", message)
    except (aiohttp.ClientError, OSError) as error:
        raise engine_failed(model, "closed the connection") from error
    return bytes(data)


def _parse(content: bytes) -> Any:
    try:
        return read_fast(content, limits=ANSWER_LIMITS)
    except InputInvalid:
        return None
