"""Answers of the small HTTP servers: a schema as JSON, or a `Problem` with a status. A failed request is data."""

import asyncio
import logging
import signal
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import ValidationError
from rlrun.schema.base import Schema
from rlrun.schema.wire import Problem

log = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0
"""How long requests under way may finish after SIGTERM."""


class Refusal(Exception):
    """A request that cannot be served, as an HTTP status and a problem."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(f"{problem.reason}: {problem.message}")
        self.status = status
        self.problem = problem


def answer(body: Schema, status: int = 200) -> web.Response:
    """JSON under the schema's outside names."""
    return web.json_response(body.to_json_dict(), status=status)


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every exception of a handler becomes a `Problem`; only those nobody expected are logged with their traceback."""
    try:
        return await handler(request)
    except Refusal as refusal:
        return answer(refusal.problem, refusal.status)
    except ValidationError as error:
        return answer(Problem(reason="InvalidRequest", message=_in_words(error)), 422)
    except web.HTTPException:
        raise
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path)
        message = f"{type(error).__name__}: {error}. This is an error of the server: see its log"
        return answer(Problem(reason="InternalError", message=message), 500)


def metrics_handler(registry: CollectorRegistry) -> Any:
    """A handler of GET /metrics."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return metrics


async def healthz(_: web.Request) -> web.Response:
    """The process runs its event loop."""
    return web.Response(text="ok\n")


def runner_of(app: web.Application) -> web.AppRunner:
    """A runner whose handlers are cancelled when their client hangs up: nobody waits for that answer any more."""
    return web.AppRunner(app, handler_cancellation=True, shutdown_timeout=DRAIN_SECONDS, access_log=None)


def stop_event() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def _in_words(error: ValidationError) -> str:
    details = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in error.errors())
    return f"the request does not fit the schema: {details}"
