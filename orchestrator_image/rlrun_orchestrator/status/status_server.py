"""Port 8080: health, metrics and the run's status. Ready as soon as the servers run: environments need them first."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from rlrun.protocol.orchestrator import RunStatus
from rlrun.service.access import token_middleware
from rlrun.service.server import healthz, json_response, metrics_handler


def status_application(
    build_status: Callable[[], RunStatus], registry: CollectorRegistry, token: str | None = None
) -> web.Application:
    """Return the application with /healthz, /readyz, /metrics and /status, which needs the run's token."""

    async def status(_: web.Request) -> web.Response:
        return json_response(build_status())

    app = web.Application(middlewares=[token_middleware(token)])
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", healthz)
    app.router.add_get("/metrics", metrics_handler(registry))
    app.router.add_get("/status", status)
    return app
