"""Errors in the format of OpenAI's API, whose clients show them to users."""

import json
import logging

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from rlrun.api.base.names import snake
from rlrun.service.errors import ProblemError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from rlrun_server.rest.base.problems import RETRY_SECONDS, RETRYABLE, RestError, request_id_of, respond_to_errors

log = logging.getLogger(__name__)

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
CLIENT_ERROR, SERVER_ERROR = "invalid_request_error", "server_error"
FIRST_SERVER_ERROR = 500
NOT_REPEATED = frozenset({"timeout", "answer_too_large"})
"""Codes of errors that would recur. OpenAI's clients must not retry them automatically."""
PATHS = "/v1/chat/completions, /v1/completions and /v1/models"


class InferenceError(Exception):
    """Rejection of a request. `code` is stable, so that programs can rely on it. The message says what to do."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param

    def body(self) -> bytes:
        """Return the body of the response."""
        fallback = SERVER_ERROR if self.status >= FIRST_SERVER_ERROR else CLIENT_ERROR
        kind = TYPES.get(self.status, fallback)
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()

    def event(self) -> bytes:
        """Return the error as the last event of a stream."""
        return b"data: " + self.body() + b"\n\n"


def error_response(error: InferenceError) -> Response:
    """Return the response for an error."""
    headers = {"Retry-After": str(RETRY_SECONDS)} if error.status in RETRYABLE else {}
    if error.code in NOT_REPEATED:
        headers["X-Should-Retry"] = "false"
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="rlrun"'
    return Response(error.body(), error.status, headers, "application/json")


def from_rest(error: RestError) -> InferenceError:
    """Convert an error of the REST API to OpenAI's format."""
    code = "invalid_api_key" if error.status == 401 else snake(error.reason).lower()
    return InferenceError(error.status, code, error.detail)


def rest_error_response(_: Request, error: RestError) -> Response:
    """Return the response for an error of the REST API."""
    return error_response(from_rest(error))


def install(app: FastAPI) -> None:
    """Make all error responses of the application use OpenAI's format."""

    def on_problem(_: Request, error: ProblemError) -> Response:
        return error_response(from_rest(RestError(error.status, error.problem.reason, error.problem.message)))

    def on_validation(_: Request, error: RequestValidationError) -> Response:
        return error_response(InferenceError(400, "invalid_request", "The parameters of the request are not valid."))

    def on_http(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            message = f"The path does not support {request.method}. The paths are {PATHS}."
            return error_response(InferenceError(405, "method_not_allowed", message))
        message = f"The path does not exist. The paths are {PATHS}."
        return error_response(InferenceError(error.status_code, "path_not_found", message))

    respond_to_errors(
        app,
        {
            InferenceError: lambda _, error: error_response(error),
            RestError: rest_error_response,
            ProblemError: on_problem,
            RequestValidationError: on_validation,
            HTTPException: on_http,
        },
    )


def unexpected_response(request: Request) -> Response:
    """Return the response for an unexpected exception, which is logged with the id of the request."""
    message = (
        f"rlrun-server failed. Tell the platform team the request id {request_id_of(request)}, which is in its log."
    )
    return error_response(InferenceError(500, "internal_error", message))
