"""Port 8080: health, metrics, the run's status. Ready means that the servers are up: environments need them first."""

from aiohttp import web
from prometheus_client import CollectorRegistry
from rlrun.service.server import healthz, json_response, metrics_handler

from rlrun_orchestrator.board import Board


def status_application(board: Board, registry: CollectorRegistry) -> web.Application:
    """/healthz, /readyz, /metrics and /status."""

    async def status(_: web.Request) -> web.Response:
        return json_response(board.status())

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", healthz)
    app.router.add_get("/metrics", metrics_handler(registry))
    app.router.add_get("/status", status)
    return app
