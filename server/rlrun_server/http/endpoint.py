"""Endpoints whose errors are `Problem`s: the routes for pods of runs and for the command line.

They are ASGI applications without the layers of FastAPI, because signatures are requested thousands of times a minute.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping

from rlrun.api.base.received import InputInvalid
from rlrun.api.base.schema import Schema
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rlrun_server.http.client_memory import CountedAnswer

log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]


class Endpoint:
    """ASGI application that calls one handler."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request. Exceptions become problems; unexpected exceptions are logged with their traceback."""
        request = Request(scope, receive)
        try:
            response = await self._handler(request)
        except ProblemError as error:
            response = json_response(error.problem, error.status)
        except InputInvalid as error:
            response = json_response(Problem(reason=Reason.INVALID_REQUEST, message=str(error)), 422)
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            message = "Internal server error: see the server's log"
            response = json_response(Problem(reason=Reason.INTERNAL_ERROR, message=message), 500)
        answer = CountedAnswer(request, send, _no_memory)
        try:
            await response(scope, receive, answer.send)
        finally:
            answer.release()


class PathDispatcher:
    """Dispatches POST requests by path, and forwards requests for all other paths."""

    def __init__(self, posts: Mapping[str, ASGIApp], others: ASGIApp) -> None:
        """`posts` maps each path to its endpoint for POST."""
        self._posts = posts
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request."""
        endpoint = self._posts.get(scope["path"]) if scope["type"] == "http" else None
        if endpoint is None:
            await self._others(scope, receive, send)
        elif scope["method"] == "POST":
            await endpoint(scope, receive, send)
        else:
            await PlainTextResponse("405: Method Not Allowed", 405, {"Allow": "POST"})(scope, receive, send)


def _no_memory(_: Request) -> Response:
    message = "Too many large responses are waiting to be read. Read or close yours, then retry the request."
    return json_response(Problem(reason=Reason.TOO_MANY_REQUESTS, message=message), 503)


def json_response(body: Schema, status: int = 200) -> Response:
    """Return a JSON response with the fields of `body` that are not None."""
    content = body.model_dump_json(by_alias=True, exclude_none=True)
    return Response(content, status, media_type="application/json; charset=utf-8")


class ByPrefix:
    """Dispatches requests to applications by path prefix, and all other requests to a default application."""

    def __init__(self, apps: Mapping[str, ASGIApp], others: ASGIApp) -> None:
        """`apps` maps each prefix, such as `/v1`, to its application, which receives the full path."""
        self._apps = apps
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request."""
        path = str(scope.get("path", ""))
        for prefix, app in self._apps.items():
            if path == prefix or path.startswith(f"{prefix}/"):
                await app(scope, receive, send)
                return
        await self._others(scope, receive, send)
