"""Logs a browser in at an OpenID Connect issuer, by the authorization code flow with PKCE (RFC 7636).

State, nonce and verifier are sealed in a cookie of the browser that started the login. Any replica can complete the
login, but only in that browser.
"""

import base64
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlencode

from rlrun.constants import Reason
from rlrun.service.errors import ProblemError

from rlrun_server.authentication.id_token import TokenRefused, user_of, verify
from rlrun_server.authentication.oidc_issuer import OidcIssuer
from rlrun_server.authentication.sealed import Sealer
from rlrun_server.authentication.users import seal_issuer_user
from rlrun_server.runtime.oidc_settings import OidcSettings

log = logging.getLogger(__name__)

LOGIN_SECONDS = 600
"""Time limit for a login at the issuer in seconds."""
PURPOSE = "oidc login"


@dataclass(frozen=True)
class BegunLogin:
    """Secrets of a login in progress. Only the browser that started the login has them."""

    verifier: str
    nonce: str


class OidcLogin:
    """Logs users in at the OIDC issuer, and returns a credential for each. Rejections raise ProblemError."""

    def __init__(self, settings: OidcSettings, issuer: OidcIssuer, sealer: Sealer, now: Callable[[], float]) -> None:
        """`now` returns the seconds since 1970."""
        self._settings = settings
        self._issuer = issuer
        self._sealer = sealer
        self._now = now

    async def begin(self) -> tuple[str, str]:
        """Start a login. Returns the issuer's URL for the browser, and the text for the browser's login cookie."""
        endpoint = (await self._issuer.configuration()).authorization_endpoint
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._settings.redirect_url,
            "scope": " ".join(self._settings.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        fields = {"state": state, "nonce": nonce, "verifier": verifier, "expires": self._now() + LOGIN_SECONDS}
        url = f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"
        return url, self._sealer.seal(json.dumps(fields).encode(), PURPOSE)

    def open_login(self, kept: str, state: str) -> BegunLogin:
        """Return the login that the browser started. `kept` is the text from `begin`, which the browser's cookie
        contains, and `state` is from the issuer's redirect. Raises ProblemError if they do not match or time is up.
        """
        content = self._sealer.open(kept, PURPOSE)
        fields = {} if content is None else json.loads(content)
        if fields.get("expires", 0.0) <= self._now() or not hmac.compare_digest(
            fields["state"].encode(), state.encode()
        ):
            message = (
                f"The login took longer than {LOGIN_SECONDS // 60} minutes, or was not started in this browser. Start "
                f"again on the login page."
            )
            raise ProblemError.of(403, Reason.OIDC_LOGIN_REFUSED, message)
        return BegunLogin(fields["verifier"], fields["nonce"])

    async def end(self, begun: BegunLogin, code: str) -> tuple[str, int | None]:
        """Complete a login with the issuer's `code`. Returns the user's credential, and the time at which the session
        ends at the latest, in seconds since 1970, or None if the credential contains its own expiry.
        """
        try:
            token = await self._issuer.redeem(code, begun.verifier)
            claims = verify(token, await self._issuer.key_of(token), self._settings, begun.nonce)
            if not self._settings.impersonate:
                return token, None
            name, groups = user_of(claims, self._settings)
        except TokenRefused as error:
            log.warning("a login at the OIDC issuer was rejected: %s", error)
            raise ProblemError.of(403, Reason.OIDC_LOGIN_REFUSED, str(error)) from error
        log.info("user %s has logged in at the OIDC issuer", name)
        length = self._settings.session_seconds
        end = int(self._now()) + length if length else int(claims["exp"])
        return seal_issuer_user(self._sealer, name, groups, end), end
