"""Building blocks of an HTTP server: JSON responses, errors, probes, metrics and shutdown."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar, cast

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel
from typing_extensions import override

from rlrun.api.base.received import InputInvalid, parse
from rlrun.api.base.schema import Schema
from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.protocol.problem import Problem
from rlrun.protocol.train_batch import SAME_VERSION, BatchReader, TrainBatch
from rlrun.service.errors import ProblemError
from rlrun.service.listening import BACKLOG, MAX_CONNECTIONS, OpenConnections, allow_connections, listen

log = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)

PARSE_ASIDE = 256 * 1024
"""Body size in bytes above which parsing happens in a thread."""
BODY_SECONDS = 300.0
"""Time limit in seconds for receiving a request body."""
DRAIN_SECONDS = 5.0
"""Time in seconds for requests in progress to finish after SIGTERM."""


def json_response(body: Schema, status: int = 200) -> web.Response:
    """Return a response with `body` as JSON."""
    return web.json_response(body.to_json_dict(), status=status)


@web.middleware
async def problem_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert every exception of a handler except HTTPException to a response with a `Problem`. Unexpected exceptions
    are logged with their traceback.
    """
    try:
        return await handler(request)
    except ProblemError as error:
        return json_response(error.problem, error.status)
    except InputInvalid as error:
        # Raised for a response that this process received, because request bodies are parsed by `read_model`.
        return json_response(Problem(reason=Reason.ANSWER_INVALID, message=str(error)), 422)
    except web.HTTPException:
        raise
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path)
        message = f"{type(error).__name__}: {error}. This is a bug in the server; see its log"
        return json_response(Problem(reason=Reason.INTERNAL_ERROR, message=message), 500)


def metrics_handler(registry: CollectorRegistry, before_scrape: Callable[[], Awaitable[None]] | None = None) -> Any:
    """Return the handler of GET /metrics, which calls `before_scrape` before it collects the metrics."""

    async def metrics(_: web.Request) -> web.Response:
        if before_scrape is not None:
            await before_scrape()
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return metrics


async def healthz(_: web.Request) -> web.Response:
    """Handle GET /healthz. A response shows that the event loop runs."""
    return web.Response(text="ok\n")


class LimitedRunner(web.AppRunner):
    """Application runner with a limit on open connections (see OpenConnections)."""

    def __init__(
        self,
        app: web.Application,
        *,
        connections: int = MAX_CONNECTIONS,
        cancels: bool = True,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        """If `cancels` is set, a handler is cancelled when its client disconnects."""
        super().__init__(app, handler_cancellation=cancels, shutdown_timeout=drain_seconds, access_log=None)
        self._connections = OpenConnections(self._make_protocol, allow_connections(connections))
        app.middlewares.insert(0, self._count_request)

    @property
    @override
    def server(self) -> web.Server | None:
        """Factory that creates the protocol of each connection."""
        return cast(web.Server, self._connections)

    def _make_protocol(self) -> asyncio.Protocol:
        made = super().server
        assert made is not None
        return made()

    @web.middleware
    async def _count_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        with self._connections.handling(request.transport):
            return await handler(request)


async def listen_on(runner: web.AppRunner, port: int, host: str | None = None) -> None:
    """Open the port on one address, or on all addresses of this host, IPv4 and IPv6. Raises OSError."""
    for listening in listen(host, port):
        await web.SockSite(runner, listening, backlog=BACKLOG).start()


@contextlib.asynccontextmanager
async def serving(app: web.Application, port: int, *, connections: int = MAX_CONNECTIONS) -> AsyncIterator[None]:
    """Serve the application on all addresses of this host while the context is open."""
    runner = LimitedRunner(app, connections=connections)
    await runner.setup()
    try:
        await listen_on(runner, port)
        yield
    finally:
        await runner.cleanup()


def stop_event() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def read_batch(request: web.Request) -> TrainBatch:
    """Read the request body piece by piece and return it as a batch.

    Raises ProblemError: TrainBatchInvalid, or BodyTooSlow after BODY_SECONDS.
    """
    reader = BatchReader(request.content_length)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while reader.wanted:
                data = await request.content.readexactly(reader.wanted)
                # A long header, or the bits of a long sample.
                if len(data) > PARSE_ASIDE:
                    await asyncio.to_thread(reader.feed, data)
                else:
                    reader.feed(data)
            if not await request.content.readany():
                return reader.batch
        message = "The batch has more bytes than its header declares."
    except TimeoutError:
        raise _too_slow() from None
    except asyncio.IncompleteReadError:
        message = f"The batch has fewer bytes than its header declares. {SAME_VERSION}"
    except InputInvalid as error:
        message = str(error)
    raise ProblemError.of(UNPROCESSABLE, Reason.TRAIN_BATCH_INVALID, message)


def _too_slow() -> ProblemError:
    message = f"The body did not arrive within {BODY_SECONDS:g} s. Send it again."
    return ProblemError.of(408, Reason.BODY_TOO_SLOW, message)


async def read_model(
    request: web.Request, model: type[M], *, context: Any = None, reason: str = Reason.INVALID_REQUEST
) -> M:
    """Parse the body of a request as `model`. An empty body counts as an empty object.

    Large bodies are parsed in a thread. `context` is pydantic's validation context. Raises ProblemError with `reason`
    if the body is invalid, or BodyTooSlow after BODY_SECONDS.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            data = await request.read() or b"{}"
    except TimeoutError:
        raise _too_slow() from None
    try:
        if len(data) > PARSE_ASIDE:
            return await asyncio.to_thread(parse, model, data, context=context)
        return parse(model, data, context=context)
    except InputInvalid as error:
        message = str(error)
    raise ProblemError.of(422, reason, message)
