"""Status server: health, metrics and progress. The server is ready as soon as it listens, because environments must
reach the pod before they can become ready.
"""

import asyncio
import hashlib
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from rlrun.protocol.orchestrator import MAX_WAIT_SECONDS, SINCE, WAIT, RunStatus
from rlrun.service.access import token_middleware
from rlrun.service.server import healthz, json_response, metrics_handler

LOOK_SECONDS = 0.5
"""Seconds between two polls of the status for a waiting request. Changes within one pause are reported together."""


def status_application(
    build_status: Callable[[], RunStatus], registry: CollectorRegistry, token: str | None = None
) -> web.Application:
    """Return the application with /healthz, /readyz, /metrics and /status, which requires the run's token."""
    ending = asyncio.Event()

    async def status(request: web.Request) -> web.Response:
        loop = asyncio.get_running_loop()
        since, end = request.query.get(SINCE), loop.time() + _wait_of(request)
        while (run_status := with_version(build_status())).version == since and not ending.is_set():
            left = end - loop.time()
            if left <= 0:
                break
            await asyncio.sleep(min(LOOK_SECONDS, left))
        return json_response(run_status)

    async def end_waits(_: web.Application) -> None:
        ending.set()

    app = web.Application(middlewares=[token_middleware(token)])
    app.on_shutdown.append(end_waits)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", healthz)
    app.router.add_get("/metrics", metrics_handler(registry))
    app.router.add_get("/status", status)
    return app


def with_version(status: RunStatus) -> RunStatus:
    """Return the status with a version computed from its content, which is the same in every process.

    Changes of the policy version, the numbers of groups and the remaining time do not change this version, so that a
    step costs only one report and one write of the run's status.
    """
    content = status.model_dump_json(exclude={"version", "eta_seconds", "groups", "policy_version"})
    return status.model_copy(update={"version": hashlib.sha256(content.encode()).hexdigest()[:16]})


def _wait_of(request: web.Request) -> float:
    """Return the number of seconds to wait. Raises HTTPBadRequest."""
    try:
        seconds = float(request.query.get(WAIT, 0))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise web.HTTPBadRequest(text=f"{WAIT} must be a number of seconds from 0 to {MAX_WAIT_SECONDS:g}\n")
    return seconds
