"""Routes for browser sessions: login with a credential or at an OIDC issuer, logout, and codes for `rlrun open`."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from rlrun.api.base.field_errors import FieldProblem, path_of
from rlrun.api.base.received import InputInvalid, parse
from rlrun.api.base.schema import Schema
from rlrun.constants import Reason
from starlette.responses import Response

from rlrun_server.authentication.sessions import MAX_CREDENTIAL, BrowserSessions, refuse_other_sites
from rlrun_server.http.body import read_body
from rlrun_server.http.request import SESSIONS, client_of, header_token_of
from rlrun_server.rest.base.access import ANYONE, IDENTIFIED, Caller
from rlrun_server.rest.base.problems import RestError, from_field_problems, invalid
from rlrun_server.rest.base.responses import schema_response
from rlrun_server.rest.routes.identity import Identity, identity_of

router = APIRouter(tags=["session"])

MAX_BODY = 2 * MAX_CREDENTIAL
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"

Secret = Annotated[str, Field(min_length=1, max_length=MAX_CREDENTIAL, pattern=r"^[!-~]+$")]


class IssuerAnswer(Schema):
    """Parameters with which the OIDC issuer redirected the browser back."""

    code: Secret
    state: Secret


class Login(Schema):
    """Credential with which a browser logs in. Exactly one field is set."""

    token: Secret | None = None
    """Kubernetes token or API key."""
    code: Annotated[str, Field(min_length=1, max_length=MAX_BODY, pattern=r"^[A-Za-z0-9_-]+$")] | None = None
    """Code from `session:code`."""
    oidc: IssuerAnswer | None = None
    """Result of a login that `session:oidc` started in this browser."""


class IssuerLogin(Schema):
    """Login at the OIDC issuer, valid for 10 minutes."""

    url: str
    """URL of the issuer to which the browser must navigate."""


class SessionInfo(Schema):
    """Identity of the caller, and expiry of the session."""

    identity: Identity
    expires: str | None = None
    """Expiry in UTC, as in `2026-01-31T12:00:00Z`. Unset if the credential of the request is in a header."""


class LoginCode(Schema):
    """Code that logs a browser in once, used as `#login={code}` after the address of the page."""

    code: str
    expires: str
    """Expiry in UTC, a minute after the request."""


LOGIN_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": Login.model_json_schema()}}}
}


@router.post("/session", response_model=SessionInfo, openapi_extra=LOGIN_BODY)
async def log_in(request: Request, _: None = ANYONE) -> Response:
    """Log a browser in. The response sets a cookie that is valid for at most 8 hours. Needs the header `X-Rlrun: 1`."""
    sessions = _sessions_of(request)
    refuse_other_sites(request)
    login = read_login(await read_body(request, MAX_BODY))
    client = client_of(request)
    end = None
    if login.oidc is not None:
        token, end = await sessions.end_at_issuer(request, login.oidc.state, login.oidc.code)
    else:
        token = sessions.use_code(client, login.code) if login.code is not None else str(login.token)
    user, session = await sessions.log_in(request, client, token, end, is_of_issuer=login.oidc is not None)
    response = schema_response(SessionInfo(identity=identity_of(user), expires=_time(session.expires)))
    sessions.set_cookie(request, response, session)
    if login.oidc is not None:
        sessions.keep_login(request, response, "")
    return response


@router.post("/session:oidc", response_model=IssuerLogin)
async def begin_at_issuer(request: Request, _: None = ANYONE) -> Response:
    """Return the URL of a login at the OIDC issuer, and set a cookie for it. Needs the header `X-Rlrun: 1`."""
    sessions = _sessions_of(request)
    refuse_other_sites(request)
    url, kept = await sessions.begin_at_issuer()
    response = schema_response(IssuerLogin(url=url))
    sessions.keep_login(request, response, kept)
    return response


@router.get("/session", response_model=SessionInfo)
async def read_session(request: Request, caller: Caller = IDENTIFIED) -> Response:
    """Return your identity, and when the session ends."""
    sessions: BrowserSessions | None = request.scope.get(SESSIONS)
    of_cookie = None if sessions is None or header_token_of(request) else sessions.find(request)
    expires = None if of_cookie is None else _time(of_cookie.expires)
    return schema_response(SessionInfo(identity=identity_of(caller.user), expires=expires))


@router.delete("/session", status_code=204, response_class=Response)
async def log_out(request: Request, _: None = ANYONE) -> Response:
    """Log a browser out. The response deletes the cookie. Needs the header `X-Rlrun: 1`."""
    sessions = _sessions_of(request)
    refuse_other_sites(request)
    response = Response(status_code=204)
    sessions.delete_cookie(request, response)
    return response


@router.post("/session:code", response_model=LoginCode)
async def create_code(request: Request, caller: Caller = IDENTIFIED) -> Response:
    """Return a code with which a browser logs in as you within a minute. A session cookie is not accepted for this
    request.
    """
    sessions = _sessions_of(request)
    if not header_token_of(request):
        detail = "A code cannot be created with a session cookie. Send a token or an API key in a header."
        raise RestError(401, Reason.TOKEN_INVALID, detail)
    code, expires = sessions.make_code(caller.token)
    return schema_response(LoginCode(code=code, expires=_time(expires)))


def read_login(body: bytes) -> Login:
    """Return the credential in a body. Errors name fields, and contain no values. Raises RestError."""
    try:
        login = parse(Login, body, is_user_input=True)
    except InputInvalid as error:
        if not error.faults:
            raise invalid(str(error)) from None
        message = (
            f"must be at most {MAX_CREDENTIAL} printable ASCII characters; the permitted fields are `token`, `code`, "
            "`oidc.code` and `oidc.state`"
        )
        found = [FieldProblem(path_of(fault.location), message) for fault in error.faults]
        field_errors = from_field_problems(found)
        raise invalid(
            "The body must have a token, a login code from rlrun open, or an OIDC code and state.", field_errors, 422
        ) from None
    if len(login.model_dump(exclude_none=True)) != 1:
        raise invalid("The body must have exactly one of `token`, `code` and `oidc`.", status=422)
    return login


def _sessions_of(request: Request) -> BrowserSessions:
    sessions: BrowserSessions | None = request.scope.get(SESSIONS)
    if sessions is None:
        detail = "This server has no web page and accepts no logins, because server.page in the chart is false."
        raise RestError(404, Reason.OBJECT_NOT_FOUND, detail)
    return sessions


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(TIME_FORMAT)
