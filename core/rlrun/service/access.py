"""Checks the run's token in HTTP servers (see `rlrun.protocol.access`)."""

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rlrun.constants import Reason
from rlrun.protocol.access import is_allowed
from rlrun.protocol.problem import Problem
from rlrun.service.server import json_response

UNAUTHORIZED = 401


def token_middleware(token: str | None) -> Middleware:
    """Return a middleware that, before any other handling, responds with 401 to requests without a valid token."""

    @web.middleware
    async def check_token(request: web.Request, handler: Handler) -> web.StreamResponse:
        if is_allowed(request.path, request.headers, token):
            return await handler(request)
        return unauthorized_response()

    return check_token


NO_TOKEN = "The request does not carry this run's token. Only processes of this run can send such requests."


def unauthorized_response(message: str = NO_TOKEN) -> web.Response:
    """Return the response to a request without a valid token."""
    response = json_response(Problem(reason=Reason.TOKEN_INVALID, message=message), UNAUTHORIZED)
    response.headers["WWW-Authenticate"] = "Bearer"
    return response
