"""Errors of the REST API: RFC 9457 problems, all with the same fields."""

import json
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import Field
from rlrun.api.base.field_errors import FieldProblem
from rlrun.api.base.schema import Schema
from rlrun.constants import Reason
from rlrun.kube.errors import TOO_LARGE, ApiError
from rlrun.service.errors import ProblemError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 5
RETRYABLE = frozenset({429, 503})
MAX_FIELD_ERRORS = 100


class FieldError(Schema):
    """Problem with one field or parameter of a request."""

    pointer: str
    """JSON pointer into the body, or `query/{name}`, `path/{name}`, `header/{name}`."""
    detail: str


class ProblemDetails(Schema):
    """RFC 9457 problem."""

    type: str
    """Problem type: `/problems/{reason}`."""
    title: str
    status: int
    detail: str
    """Explanation for users: what happened, and what to do."""
    instance: str
    """Path of the request."""
    reason: str
    """Machine-readable reason, such as `TokenInvalid`, that does not change between versions. Same values as `reason`
    in the conditions of Kubernetes objects.
    """
    errors: list[FieldError] = Field(default_factory=list)
    """Problems with individual fields, at most 100."""
    request_id: str
    """Id of the request in the log of rlrun-server."""


class RestError(Exception):
    """Rejection of a request."""

    def __init__(
        self,
        status: int,
        reason: str,
        detail: str,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.detail = detail
        self.errors = errors
        self.headers = headers or {}


def invalid(detail: str, errors: Sequence[FieldError] = (), status: int = 400) -> RestError:
    """Return the error for a request that does not match its schema."""
    return RestError(status, Reason.INVALID_REQUEST, detail, errors)


def not_found(what: str) -> RestError:
    """Return the error for an object that does not exist. `what` names the object."""
    return RestError(
        404, Reason.OBJECT_NOT_FOUND, (f"{what} does not exist. Correct the name, or list the existing objects.")
    )


def from_field_problems(problems: Sequence[FieldProblem]) -> list[FieldError]:
    """Convert at most MAX_FIELD_ERRORS problems of a spec."""
    return [FieldError(pointer=pointer_of(p.path), detail=p.message) for p in problems[:MAX_FIELD_ERRORS]]


def pointer_of(path: str) -> str:
    """Convert a field path to a JSON pointer, for example `env[0].id` to `/env/0/id`."""
    parts = path.replace("[", ".").replace("]", "").split(".")
    return "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in parts if part)


def from_api_error(error: ApiError, field: str = "") -> RestError:
    """Convert an error that the API server returned for a request with the caller's permissions.

    `field` is a prefix, for example `spec`, which is removed from the error's field paths because the body of the
    caller's request lacks it.
    """
    if error.reason == TOO_LARGE:
        return RestError(413, Reason.ANSWER_TOO_LARGE, _sentence(f"the objects cannot be read: {error.message}"))
    if error.is_temporary or error.status == 0:
        log.warning("the API server did not respond to a request of a user: %s", error)
        detail = "The API server did not respond. Retry the request later."
        return RestError(503, Reason.API_SERVER_UNAVAILABLE, detail)
    message = _sentence(error.message)
    if error.status == 401:
        return unauthorized_error()
    if error.status == 403:
        return RestError(403, Reason.ACCESS_FORBIDDEN, f"The API server refused the request: {message}")
    if error.status == 404:
        return RestError(404, Reason.OBJECT_NOT_FOUND, message)
    if error.status == 409:
        is_taken = error.reason == "AlreadyExists"
        advice = "Choose another name." if is_taken else "Read the object again and retry the change."
        return RestError(409, Reason.NAME_TAKEN if is_taken else Reason.OBJECT_CHANGED, f"{message} {advice}")
    causes = [cause for cause in error.details.get("causes") or [] if isinstance(cause, dict)]
    errors = [
        FieldError(pointer=pointer_of(_without(str(c.get("field", "")), field)), detail=str(c.get("message", "")))
        for c in causes[:MAX_FIELD_ERRORS]
    ]
    return RestError(422, Reason.OBJECT_REFUSED, f"The API server rejected the object: {message}", errors)


def from_own_api_error(error: ApiError) -> RestError:
    """Convert an error that the API server returned for a request with rlrun-server's own permissions, which users
    cannot change.
    """
    if error.status not in (401, 403):
        return from_api_error(error)
    log.error("the API server refused a request of rlrun-server itself: %s", error)
    detail = (
        f"The API server refused a request of rlrun-server itself: {_sentence(error.message)} Ask the platform team to "
        "compare rlrun-server's role with templates/server.yaml of the chart."
    )
    return RestError(503, Reason.API_SERVER_UNAVAILABLE, detail)


def unauthorized_error() -> RestError:
    """Return the error for a request without a valid credential."""
    detail = (
        "The API server does not accept the token, or the API key does not exist or has expired. Log in to the "
        "cluster again, or create a new key."
    )
    return RestError(401, Reason.TOKEN_INVALID, detail)


def problem_response(request: Request, error: RestError) -> Response:
    """Return the RFC 9457 response for an error."""
    problem = ProblemDetails(
        type=f"/problems/{error.reason}",
        title=_title(error.reason),
        status=error.status,
        detail=error.detail,
        instance=request.url.path,
        reason=error.reason,
        errors=list(error.errors),
        request_id=request_id_of(request),
    )
    headers = dict(error.headers)
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="rlrun"'
    if error.status in RETRYABLE:
        headers.setdefault("Retry-After", str(RETRY_SECONDS))
    return Response(json.dumps(problem.to_json_dict()), error.status, headers, MEDIA_TYPE)


def request_id_of(request: Request) -> str:
    """Return the id of a request, which is generated on first use."""
    if not hasattr(request.state, "request_id"):
        request.state.request_id = secrets.token_hex(8)
    return str(request.state.request_id)


def install(app: FastAPI, methods: Mapping[str, Iterable[str]]) -> None:
    """Make the application return all errors as RFC 9457 problems.

    `methods` maps each path in the OpenAPI document to its HTTP methods. Generating the document during a request would
    take too long.
    """

    def on_problem(request: Request, error: ProblemError) -> Response:
        return problem_response(request, RestError(error.status, error.problem.reason, error.problem.message))

    def on_validation(request: Request, error: RequestValidationError) -> Response:
        allowed = allowed_methods(methods, request.url.path)
        if allowed and request.method not in allowed:
            # `/runs/first:stop` with an unsupported method matches a run named `first:stop`.
            return problem_response(request, _method_not_allowed(request, allowed))
        found = [
            FieldError(pointer="/".join(map(str, e["loc"])), detail=_sentence(str(e["msg"])))
            for e in error.errors()[:MAX_FIELD_ERRORS]
        ]
        detail = "The parameters of the request are invalid. Correct the ones listed in `errors`."
        return problem_response(request, invalid(detail, found))

    def on_http(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            # Starlette reports only the methods of the first route.
            allowed = allowed_methods(methods, request.url.path) or [(error.headers or {}).get("Allow", "")]
            found = _method_not_allowed(request, allowed)
        else:
            detail = "The path does not exist. The OpenAPI document at /rlrun/v1/openapi.json lists all paths."
            found = RestError(error.status_code, Reason.OBJECT_NOT_FOUND, detail)
        return problem_response(request, found)

    respond_to_errors(
        app,
        {
            RestError: problem_response,
            ProblemError: on_problem,
            RequestValidationError: on_validation,
            HTTPException: on_http,
        },
    )


def respond_to_errors(app: FastAPI, responses: Mapping[type[Exception], Callable[[Request, Any], Response]]) -> None:
    """Make the application respond to each exception with the result of the function in `responses` for the exception's
    type.
    """
    for kind, respond in responses.items():

        async def handle(request: Request, error: Exception, respond: Any = respond) -> Response:
            response: Response = respond(request, error)
            return response

        app.add_exception_handler(kind, handle)


def _method_not_allowed(request: Request, methods: Sequence[str]) -> RestError:
    detail = f"The path does not support {request.method}. The OpenAPI document lists the methods of each path."
    return RestError(405, Reason.METHOD_NOT_ALLOWED, detail, headers={"Allow": ", ".join(methods)})


def internal_error(request: Request) -> Response:
    """Return the response for an unexpected exception, which is logged with the id of the request."""
    detail = "rlrun-server failed. Tell the platform team the requestId, which is in the server's log."
    return problem_response(request, RestError(500, Reason.INTERNAL_ERROR, detail))


def _without(path: str, field: str) -> str:
    return path.removeprefix(f"{field}.") if field else path


def _sentence(text: str) -> str:
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _title(reason: str) -> str:
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in reason).strip()
    return f"{words[:1].upper()}{words[1:]}" or HTTPStatus(500).phrase


PARAMETER = re.compile(r"\{[^{}]*\}")


def allowed_methods(methods: Mapping[str, Iterable[str]], path: str) -> list[str]:
    """Return the HTTP methods of the path, or an empty list if the path does not exist.

    `methods` maps each path template to its methods. A path parameter contains no colon, so `/runs/first:stop` is the
    action `stop` and not a run named `first:stop`.
    """
    allowed: set[str] = set()
    for template, those in methods.items():
        if re.fullmatch("[^/:]+".join(map(re.escape, PARAMETER.split(template))), path):
            allowed.update(those)
    return sorted(allowed)
