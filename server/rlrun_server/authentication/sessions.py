"""Browser sessions, for which the server stores nothing: the user's credential is sealed in a cookie."""

import base64
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from rlrun.api.base.received import read_fast
from rlrun.constants import Reason
from rlrun.service.errors import ProblemError
from starlette.requests import Request
from starlette.responses import Response

from rlrun_server.authentication.identification import Identification
from rlrun_server.authentication.oidc_login import LOGIN_SECONDS, OidcLogin
from rlrun_server.authentication.sealed import Sealer
from rlrun_server.authentication.users import User, Users, is_checked_here
from rlrun_server.http.cross_site import cross_site_reason, is_plain_loopback, is_sent_in_clear
from rlrun_server.runtime.rate_limit import Rate, RateLimiter

SESSION_SECONDS = 8 * 3600
CODE_SECONDS = 60
MAX_CREDENTIAL = 16 * 1024
"""Maximum length of a credential in a login request."""
MAX_COOKIE = 3800
"""Maximum length of a cookie's value. Browsers accept 4,096 bytes including the name and the attributes."""
COOKIE = "__Host-rlrun-session"
"""Name of the cookie. Because of its prefix, browsers accept it only over TLS and only from this host."""
LOOPBACK_COOKIE = "rlrun-session"
"""Name of the cookie if the browser reaches the server through a loopback address, without TLS."""
LOGIN_COOKIE, LOOPBACK_LOGIN_COOKIE = "__Host-rlrun-login", "rlrun-login"
"""Names of the cookie during a login at the OIDC issuer."""
SESSION, CODE = "session", "login code"
ATTEMPTS = Rate(per_second=0.5, burst=20.0)
"""Rate limit per address for logins with unknown credentials."""
ATTEMPTS_OF_ALL = Rate(per_second=5.0, burst=100.0)
ISSUER_LOGINS = Rate(per_second=20.0, burst=200.0)
"""Rate limit for logins at the OIDC issuer. Each login causes a request to the issuer. The limit is not per address,
because browsers may share a gateway.
"""
EVERYONE = ""


@dataclass(frozen=True)
class Credential:
    """Credential of a user, with the expiry of the session or the login code."""

    token: str
    """Kubernetes token, API key or credential from a login at the OIDC issuer. Never logged."""
    expires: int
    """Expiry in seconds since 1970."""
    id: str = ""
    """Id of a login code, or empty for a session."""


class BrowserSessions:
    """Logs browsers in, and reads the credential in their requests. Rejections raise ProblemError."""

    def __init__(
        self,
        sealer: Sealer,
        identification: Identification,
        users: Users,
        clock: Callable[[], float],
        now: Callable[[], float],
        oidc: OidcLogin | None = None,
    ) -> None:
        """`clock` returns monotonic seconds, `now` the seconds since 1970. If `oidc` is None, there is no issuer."""
        self._sealer = sealer
        self._identification = identification
        self._users = users
        self._clock = clock
        self._now = now
        self._oidc = oidc
        self._attempts = RateLimiter(ATTEMPTS)
        self._attempts_of_all = RateLimiter(ATTEMPTS_OF_ALL)
        self._issuer_logins = RateLimiter(ISSUER_LOGINS)
        self._used: dict[str, int] = {}
        """Expiry of each used code, by id."""

    def find(self, request: Request) -> Credential | None:
        """Return the credential in the request's cookie, or None. Raises ProblemError for a cross-site request."""
        sealed = request.cookies.get(_cookie_name(request))
        credential = self._open(sealed, SESSION) if sealed else None
        if credential is not None:
            refuse_other_sites(request)
        return credential

    def token_of(self, request: Request) -> str:
        """Return the token in the session cookie, or an empty string. Raises ProblemError for a cross-site request."""
        credential = self.find(request)
        return "" if credential is None else credential.token

    async def log_in(
        self, request: Request, client: str, token: str, end: int | None = None, *, is_of_issuer: bool = False
    ) -> tuple[User, Credential]:
        """Log in with a credential. Returns the user and the session. Raises ProblemError.

        The session ends at `end`, in seconds since 1970, or when the credential expires if `end` is None, but after
        SESSION_SECONDS at the latest. If `is_of_issuer` is True, the credential comes from a login at the issuer, which
        does not count as an attempt to guess a credential.
        """
        refuse_other_sites(request)
        if is_sent_in_clear(request):
            message = (
                "The page was not loaded over https, so the credential could be intercepted. Open the page over "
                "https, or through a port forwarded to this machine: kubectl port-forward."
            )
            raise ProblemError.of(403, Reason.CONNECTION_NOT_ENCRYPTED, message)
        is_known = is_of_issuer or self._users.has_accepted(token) or await self._is_valid_here(token, client)
        if not (is_known or self._may_try(client)):
            raise _too_many_attempts()
        user = await self._identification.identify(token, client)
        now = int(self._now())
        return user, Credential(token, min(now + SESSION_SECONDS, end or _end_of(token) or now + SESSION_SECONDS))

    async def _is_valid_here(self, token: str, client: str) -> bool:
        """Return whether the token is a valid API key or sealed credential, which rlrun-server verifies by itself."""
        if not is_checked_here(token):
            return False
        try:
            await self._identification.identify(token, client)
        except ProblemError:
            return False
        return True

    def set_cookie(self, request: Request, response: Response, session: Credential) -> None:
        """Set the session cookie. Raises ProblemError if the credential is too long for a cookie."""
        sealed = self._seal(session, SESSION)
        if len(sealed) > MAX_COOKIE:
            message = (
                f"The token of {len(session.token)} characters is too long for a cookie. Log in with an API key (rlrun "
                "key create) or with a ServiceAccount token (kubectl create token), or configure the OIDC issuer to "
                "send fewer groups."
            )
            raise ProblemError.of(422, Reason.INVALID_REQUEST, message)
        _set_cookie(request, response, _cookie_name(request), sealed, max(0, session.expires - int(self._now())))

    def delete_cookie(self, request: Request, response: Response) -> None:
        """Delete the session cookie."""
        _set_cookie(request, response, _cookie_name(request), "", 0)

    async def begin_at_issuer(self) -> tuple[str, str]:
        """Start a login at the issuer. Returns the issuer's URL for the browser, and the value for the login cookie."""
        return await self._issuer_login().begin()

    def keep_login(self, request: Request, response: Response, kept: str) -> None:
        """Set the login cookie for a login at the issuer, or delete it if `kept` is empty."""
        _set_cookie(request, response, _login_cookie_name(request), kept, LOGIN_SECONDS if kept else 0)

    async def end_at_issuer(self, request: Request, state: str, code: str) -> tuple[str, int | None]:
        """Complete a login at the issuer. Returns the user's credential, and the time to pass to `log_in` as `end`."""
        login = self._issuer_login()
        begun = login.open_login(request.cookies.get(_login_cookie_name(request), ""), state)
        if not self._issuer_logins.allow(EVERYONE, self._clock()):
            raise _too_many_attempts()
        return await login.end(begun, code)

    def _issuer_login(self) -> OidcLogin:
        if self._oidc is None:
            message = (
                "No OIDC issuer is configured (server.oidc in the chart). Log in with a token, an API key or rlrun "
                "open."
            )
            raise ProblemError.of(404, Reason.OBJECT_NOT_FOUND, message)
        return self._oidc

    def make_code(self, token: str) -> tuple[str, int]:
        """Create a code for one login with this credential. Returns the code and its expiry."""
        code = Credential(token, int(self._now()) + CODE_SECONDS, secrets.token_urlsafe(12))
        return self._seal(code, CODE), code.expires

    def use_code(self, client: str, sealed: str) -> str:
        """Return the credential in a login code. Raises ProblemError if the code is invalid, has expired, or was used
        on this replica before.
        """
        now = self._now()
        self._used = {used: end for used, end in self._used.items() if end > now}
        code = self._open(sealed, CODE)
        if code is None or code.id in self._used:
            if not self._may_try(client):
                raise _too_many_attempts()
            message = "The login code is invalid, was already used, or is older than a minute. Run rlrun open again."
            raise ProblemError.of(401, Reason.LOGIN_CODE_INVALID, message)
        self._used[code.id] = code.expires
        return code.token

    def _may_try(self, client: str) -> bool:
        now = self._clock()
        return self._attempts.allow(client, now) and self._attempts_of_all.allow(EVERYONE, now)

    def _seal(self, credential: Credential, purpose: str) -> str:
        fields = {"token": credential.token, "expires": credential.expires, "id": credential.id}
        return self._sealer.seal(json.dumps(fields).encode(), purpose)

    def _open(self, sealed: str, purpose: str) -> Credential | None:
        content = self._sealer.open(sealed, purpose)
        credential = None if content is None else Credential(**json.loads(content))
        return credential if credential is not None and credential.expires > self._now() else None


def refuse_other_sites(request: Request) -> None:
    """Raise ProblemError if the request may be a cross-site request."""
    reason = cross_site_reason(request)
    if reason is not None:
        message = (
            f"The request was refused, because {reason}. Cookies are accepted only from this server's web page; "
            f"programs must send an Authorization: Bearer header."
        )
        raise ProblemError.of(403, Reason.CROSS_SITE_REQUEST, message)


def _cookie_name(request: Request) -> str:
    return LOOPBACK_COOKIE if is_plain_loopback(request) else COOKIE


def _login_cookie_name(request: Request) -> str:
    return LOOPBACK_LOGIN_COOKIE if is_plain_loopback(request) else LOGIN_COOKIE


def _set_cookie(request: Request, response: Response, name: str, value: str, seconds: int) -> None:
    secure = not is_plain_loopback(request)
    response.set_cookie(name, value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="strict")


def _end_of(token: str) -> int | None:
    """Return the expiry of a JSON Web Token, or None. The token is not verified, because its expiry can only shorten
    the session.
    """
    payload = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        claims = read_fast(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return int(claims["exp"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def _too_many_attempts() -> ProblemError:
    message = "Too many login attempts. Wait a minute, then log in again."
    return ProblemError.of(429, Reason.TOO_MANY_REQUESTS, message)
