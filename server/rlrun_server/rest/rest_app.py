"""Application that serves the REST API for users."""

import functools
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from rlrun.constants import VERSION, Reason
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlrun_server.http.client_memory import CountedAnswer
from rlrun_server.rest.base import problems
from rlrun_server.rest.context.services import Services
from rlrun_server.rest.routes import (
    artifact_changes,
    artifacts,
    changes,
    compare,
    environments,
    events,
    identity,
    runs,
    secrets,
    session,
    usage,
)
from rlrun_server.rest.run_data import log_routes, sample_steps
from rlrun_server.rest.run_data import metric_routes as metrics
from rlrun_server.rest.run_data import sample_routes as samples

log = logging.getLogger(__name__)

PREFIX = "/rlrun/v1"
OPENAPI_PATH = f"{PREFIX}/openapi.json"
ROUTERS = (
    identity.router,
    runs.router,
    changes.router,
    events.router,
    artifacts.router,
    artifact_changes.router,
    metrics.router,
    sample_steps.router,
    samples.router,
    compare.router,
    environments.router,
    secrets.router,
    session.router,
    usage.router,
    log_routes.router,
)
PROBLEM: dict[str, Any] = {
    "description": "Problem (RFC 9457)",
    "content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
}
PROTECTION = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    # The API and the page share an origin: content that a tenant wrote must not be rendered as a page.
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
]
"""Headers of all responses."""
DESCRIPTION = """Runs, checkpoints, adapters, metrics and rollouts of users.

Send a Kubernetes token or an API key as `Authorization: Bearer` or, through the API server's proxy, as \
`X-Rlrun-Token`. Each route requires a Kubernetes permission. Errors are RFC 9457 problems."""


def rest_app(services: Services | None = None) -> FastAPI:
    """Return the application. If `services` is None, it only provides the OpenAPI document."""
    app = FastAPI(
        title="rlrun-server",
        version=VERSION,
        description=DESCRIPTION,
        openapi_url=OPENAPI_PATH,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    app.router.routes.extend(_routes())
    problems.install(app, _methods())
    app.add_middleware(Guard)
    if services is not None:
        app.state.services = services
        app.state.access = services.access
    app.openapi = lambda: openapi_of(app)  # type: ignore[method-assign]
    return app


@functools.cache
def _routes() -> Sequence[BaseRoute]:
    """Return the routes. All applications share them, because FastAPI builds them slowly, on the first request."""
    together = APIRouter()
    for router in ROUTERS:
        together.include_router(router, prefix=PREFIX, responses={"4XX": PROBLEM, "5XX": PROBLEM})
    return together.routes


@functools.cache
def _methods() -> Mapping[str, set[str]]:
    """Return the HTTP methods of each path."""
    methods: defaultdict[str, set[str]] = defaultdict(set)
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute):
                methods[PREFIX + route.path_format] |= route.methods or set()
    return methods


def openapi_of(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of `app`, which is built on the first call."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes,
            separate_input_output_schemas=False,
        )  # fmt: skip
        components = document.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        problem = problems.ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(problem.pop("$defs", {}))
        schemas["ProblemDetails"] = problem
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        components["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "description": "Kubernetes token or API key"},
            "proxied": {"type": "apiKey", "in": "header", "name": "X-Rlrun-Token"},
        }
        document["security"] = [{"token": []}, {"proxied": []}]
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        app.openapi_schema = document
    return app.openapi_schema


class Guard:
    """Middleware that handles unexpected exceptions, sets the headers of all responses, and limits large responses."""

    def __init__(
        self,
        app: ASGIApp,
        internal_error: Callable[[Request], Response] = problems.internal_error,
        respond: Callable[[Request, problems.RestError], Response] = problems.problem_response,
    ) -> None:
        """`internal_error` builds the response for an unexpected exception, `respond` the response for a RestError."""
        self._app = app
        self._internal_error = internal_error
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        # Create the state now, so that all copies of the scope share one object.
        _ = request.state
        is_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                headers = message.setdefault("headers", [])
                headers += PROTECTION
                headers.append((b"x-request-id", problems.request_id_of(request).encode()))
            await send(message)

        answer = CountedAnswer(request, send_with_headers, self._refuse)
        try:
            await self._app(scope, receive, answer.send)
        except Exception:
            log.exception("request %s: %s %s failed", problems.request_id_of(request), request.method, request.url.path)
            if is_started:
                raise
            response = self._internal_error(request)
            await response(scope, receive, send_with_headers)
        finally:
            answer.release()

    def _refuse(self, request: Request) -> Response:
        """Return the response to send instead of one that exceeds the memory budget."""
        detail = "Too many large responses are waiting to be read. Read or close yours, then retry the request."
        return self._respond(request, problems.RestError(503, Reason.TOO_MANY_REQUESTS, detail))
