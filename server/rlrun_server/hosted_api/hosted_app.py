"""Serves Prime Intellect's hosted API below `/api/v1`, for its client `prime` (0.6.0, 0.12.0 and 0.18.0)."""

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, FastAPI
from rlrun.constants import VERSION
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlrun_server.hosted_api.base import errors
from rlrun_server.hosted_api.base.errors import detail_response
from rlrun_server.hosted_api.environments import environment_push_routes, environment_routes, environment_secret_routes
from rlrun_server.hosted_api.environments.environment_packages import EnvironmentPackages
from rlrun_server.hosted_api.environments.package_uploads import PackageUploads
from rlrun_server.hosted_api.routes import (
    account_routes,
    artifact_routes,
    data_routes,
    dedicated_routes,
    log_routes,
    run_routes,
    sample_routes,
)
from rlrun_server.hosted_api.secrets import secret_routes
from rlrun_server.rest.context.services import Services
from rlrun_server.rest.rest_app import Guard

ANSWER_SECONDS = 27.0
"""Time limit for GET requests in seconds. Other requests are not interrupted, because they may be in the middle of a
change.
"""


class TimeoutMiddleware:
    """Middleware that responds with 503 to GET requests whose response does not begin within ANSWER_SECONDS."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request."""
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        limit = asyncio.timeout(ANSWER_SECONDS)

        async def begin(message: Message) -> None:
            # The response has started.
            limit.reschedule(None)
            await send(message)

        try:
            async with limit:
                await self._app(scope, receive, begin)
        except TimeoutError:
            if not limit.expired():
                raise
            detail = f"There was no response within {ANSWER_SECONDS:.0f} s: S3 or a node is slow. Retry the command."
            await detail_response(503, detail)(scope, receive, send)


PREFIX = "/api/v1"
ROUTERS = (
    account_routes.router,
    artifact_routes.router,
    data_routes.router,
    log_routes.router,
    sample_routes.router,
    run_routes.router,
    dedicated_routes.router,
    secret_routes.router,
    environment_push_routes.router,
    environment_secret_routes.router,
    environment_routes.router,
)


@dataclass(frozen=True)
class HostedParts:
    """Services that the routes use in addition to the services of the REST API."""

    packages: EnvironmentPackages
    uploads: PackageUploads


def hosted_app(services: Services | None = None, parts: HostedParts | None = None) -> FastAPI:
    """Return the application of the hosted API. If `services` is None, the application only defines its routes."""
    app = FastAPI(title="rlrun-server for hosted clients", version=VERSION, openapi_url=None, redirect_slashes=False)
    app.router.routes.extend(_routes())
    errors.install(app)
    app.add_middleware(TimeoutMiddleware)
    app.add_middleware(Guard, internal_error=errors.internal_error, respond=errors.rest_error_response)
    if services is not None:
        app.state.services = services
        app.state.access = services.access
    if parts is not None:
        app.state.packages = parts.packages
        app.state.uploads = parts.uploads
    return app


@functools.cache
def _routes() -> Sequence[BaseRoute]:
    """Return the routes. All applications share them, because FastAPI builds them slowly, on the first request."""
    together = APIRouter()
    for router in ROUTERS:
        together.include_router(router, prefix=PREFIX)
    return together.routes
