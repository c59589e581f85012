"""Errors in the format of the hosted API: `{"detail": ...}`, with a list of `loc` and `msg` for invalid fields."""

import json
from collections.abc import Mapping, Sequence

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from rlrun.constants import Reason
from rlrun.service.errors import ProblemError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from rlrun_server.hosted_api.base.wire import Json, plain
from rlrun_server.rest.base.problems import (
    MAX_FIELD_ERRORS,
    RETRY_SECONDS,
    RETRYABLE,
    FieldError,
    RestError,
    request_id_of,
    respond_to_errors,
)

NOT_HERE = "Not supported by this platform: "


class FieldProblems(Exception):
    """Problems with fields of a request's body or with query parameters, by location."""

    def __init__(self, problems: Sequence[tuple[Sequence[str | int], str]], place: str = "body") -> None:
        """`place` is `body` or `query`."""
        super().__init__("; ".join(message for _, message in problems))
        self.problems = [([place, *location], message) for location, message in problems]


def no_counterpart(why: str, status: int = 501) -> RestError:
    """Return the error for a request for a feature that the platform lacks. `why` completes the message."""
    return RestError(status, Reason.INVALID_REQUEST, f"{NOT_HERE}{why}")


def install(app: FastAPI) -> None:
    """Make the application return all errors in the hosted API's format."""

    def on_validation(_: Request, error: RequestValidationError) -> Response:
        return fields_response([(list(each["loc"]), str(each["msg"])) for each in error.errors()])

    def on_http(request: Request, error: HTTPException) -> Response:
        detail = f"{NOT_HERE}{request.method} {request.url.path[:200]}. See docs/guides/hosted-clients.md."
        return detail_response(error.status_code, detail, error.headers)

    respond_to_errors(
        app,
        {
            RestError: rest_error_response,
            ProblemError: lambda _, error: detail_response(error.status, error.problem.message),
            FieldProblems: lambda _, error: fields_response(error.problems),
            RequestValidationError: on_validation,
            HTTPException: on_http,
        },
    )


def rest_error_response(_: Request, error: RestError) -> Response:
    """Return the response for an error of the REST API."""
    if error.errors and error.status in (400, 422):
        return fields_response([location_of(each) for each in error.errors])
    return detail_response(error.status, error.detail, error.headers)


def internal_error(request: Request) -> Response:
    """Return the response for an unexpected exception, which is logged with the id of the request."""
    return detail_response(500, f"rlrun-server failed. Tell the platform team the request id {request_id_of(request)}.")


def location_of(error: FieldError) -> tuple[list[str | int], str]:
    """Return the location and the message of a field problem of the REST API."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in error.pointer.split("/")]
    # A pointer into the body begins with a slash, and a pointer to a parameter with the parameter's location.
    parts = ["body", *parts[1:]] if parts[0] == "" else parts
    return [int(part) if part.isdigit() else part for part in parts], error.detail


def fields_response(problems: Sequence[tuple[Sequence[str | int], str]]) -> Response:
    """Return the 422 response for field problems, each with a location and a message."""
    detail: list[Json] = [
        {"loc": [plain(p) if isinstance(p, str) else p for p in location], "msg": plain(message), "type": "value_error"}
        for location, message in problems[:MAX_FIELD_ERRORS]
    ]
    return Response(json.dumps({"detail": detail}), 422, media_type="application/json")


def detail_response(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response for an error that does not concern individual fields."""
    sent = dict(headers or {})
    if status in RETRYABLE:
        sent.setdefault("Retry-After", str(RETRY_SECONDS))
    return Response(json.dumps({"detail": plain(detail)}), status, sent, "application/json")
