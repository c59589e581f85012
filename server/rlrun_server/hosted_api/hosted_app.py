"""API of hosted clients (prime 0.6.0 and 0.12.0) as one application below `/api/v1`."""

from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from rlrun.constants import VERSION
from starlette.types import ASGIApp, Receive, Scope, Send

from rlrun_server.hosted_api import (
    account_routes,
    artifact_routes,
    data_routes,
    environment_push_routes,
    environment_routes,
    environment_secret_routes,
    errors,
    log_routes,
    run_routes,
    sample_routes,
    secret_routes,
)
from rlrun_server.hosted_api.environment_packages import EnvironmentPackages
from rlrun_server.hosted_api.package_uploads import PackageUploads
from rlrun_server.rest.rest_app import Guard
from rlrun_server.rest.services import Services

PREFIX = "/api/v1"
ROUTERS = (
    account_routes.router,
    artifact_routes.router,
    data_routes.router,
    log_routes.router,
    sample_routes.router,
    run_routes.router,
    secret_routes.router,
    environment_push_routes.router,
    environment_secret_routes.router,
    environment_routes.router,
)


@dataclass(frozen=True)
class HostedParts:
    """Parts that the routes use beside the services of the REST API."""

    packages: EnvironmentPackages
    uploads: PackageUploads


def hosted_app(services: Services | None = None, parts: HostedParts | None = None) -> FastAPI:
    """Return the application. Without services it only has its routes."""
    app = FastAPI(title="rlrun-server for hosted clients", version=VERSION, openapi_url=None, redirect_slashes=False)
    for router in ROUTERS:
        app.include_router(router, prefix=PREFIX)
    errors.install(app)
    app.add_middleware(Guard, internal_error=errors.internal_error)
    if services is not None:
        app.state.services = services
        app.state.access = services.access
    if parts is not None:
        app.state.packages = parts.packages
        app.state.uploads = parts.uploads
    return app


class ByPrefix:
    """Passes requests of hosted clients to their application, and all others to the REST API."""

    def __init__(self, hosted: ASGIApp, others: ASGIApp) -> None:
        self._hosted = hosted
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        path: Any = scope.get("path", "")
        is_hosted = path == PREFIX or path.startswith(f"{PREFIX}/")
        await (self._hosted if is_hosted else self._others)(scope, receive, send)
