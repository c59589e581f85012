"""Client for an OpenID Connect issuer: reads its configuration and keys, and exchanges codes for tokens."""

import base64
import logging
import os
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import quote_plus, urlencode

import aiohttp
import jwt
from pydantic import BaseModel, Field
from rlrun.api.base.names import Text
from rlrun.api.base.proxy_rules import ProxyRules
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.service.client import parse, request
from rlrun.service.errors import ProblemError, RequestError, RequestRejected

from rlrun_server.authentication.id_token import TokenRefused, key_id_of
from rlrun_server.runtime.caches import FetchedValue
from rlrun_server.runtime.oidc_settings import OidcSettings, Url

log = logging.getLogger(__name__)

CONFIGURATION_PATH = "/.well-known/openid-configuration"
REQUEST_SECONDS = 5.0
MAX_BYTES = 256 * 1024
"""Maximum size of a response in bytes."""
KEPT_SECONDS = 3600.0
"""Seconds for which configuration and keys are cached."""
ROTATION_SECONDS = 10.0
"""Minimum seconds between requests for the issuer's keys when tokens are signed with unknown keys."""
FORM = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
BASIC = "client_secret_basic"
"""Client authentication method if the issuer lists none. If it lists others only, client_secret_post is used."""

M = TypeVar("M", bound=BaseModel)


class IssuerConfiguration(BaseModel):
    """The fields of the issuer's discovery document that a login uses."""

    issuer: Text
    authorization_endpoint: Url
    token_endpoint: Url
    jwks_uri: Url
    token_endpoint_auth_methods_supported: list[Text] = Field(default=[BASIC], max_length=64)


class TokenResponse(BaseModel):
    """The fields of the token endpoint's response that a login uses."""

    id_token: str = Field(max_length=64 * 1024)


class OidcIssuer:
    """Client for the OIDC issuer. If the issuer fails, methods raise a ProblemError that says what to do."""

    def __init__(
        self,
        settings: OidcSettings,
        read_secret: Callable[[], str],
        clock: Callable[[], float],
        timeout: float = REQUEST_SECONDS,
    ) -> None:
        """`read_secret` returns the client secret, or an empty string for a public client. `timeout` is the time limit
        for a request in seconds.
        """
        self._settings = settings
        self._read_secret = read_secret
        self._timeout = timeout
        self._proxies = ProxyRules.of_environment(os.environ)
        self._session: aiohttp.ClientSession | None = None
        self._configuration = FetchedValue(self._fetch_configuration, clock)
        self._keys = FetchedValue(self._fetch_keys, clock)

    async def configuration(self) -> IssuerConfiguration:
        """Return the issuer's configuration. Raises ProblemError."""
        try:
            return await self._configuration.value(KEPT_SECONDS)
        except RequestError as error:
            raise self._unavailable(error) from error

    async def key_of(self, token: str) -> jwt.PyJWK:
        """Return the issuer's public key for the token's key id. Raises ProblemError, TokenRefused."""
        key_id = key_id_of(token)
        try:
            for max_age in (KEPT_SECONDS, ROTATION_SECONDS):
                keys = await self._keys.value(max_age)
                if key_id in keys:
                    return keys[key_id]
        except RequestError as error:
            raise self._unavailable(error) from error
        raise TokenRefused(
            f"The issuer's ID token is signed with key {key_id[:100]!r}, which the issuer does not publish."
        )

    async def redeem(self, code: str, verifier: str) -> str:
        """Exchange an authorization code for an ID token. Raises ProblemError, TokenRefused."""
        settings, configuration = self._settings, await self.configuration()
        secret = self._read_secret()
        form = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier}
        form["redirect_uri"] = settings.redirect_url
        headers = FORM
        if secret and BASIC in configuration.token_endpoint_auth_methods_supported:
            pair = f"{quote_plus(settings.client_id)}:{quote_plus(secret)}"
            headers = {**FORM, "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        else:
            form |= {"client_id": settings.client_id, **({"client_secret": secret} if secret else {})}
        try:
            return (await self._send(configuration.token_endpoint, TokenResponse, form, headers)).id_token
        except RequestRejected as error:
            log.warning("the OIDC issuer rejected an authorization code: %s", error)
            message = (
                f"The issuer returned no ID token for the login: {error.problem.message}. Log in again. If this "
                f"persists, compare server.oidc (clientId, Secret, scopes) and the address of the page with the "
                f"client's settings at the issuer."
            )
            raise TokenRefused(message) from error
        except RequestError as error:
            raise self._unavailable(error) from error

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _fetch_configuration(self) -> IssuerConfiguration:
        issuer = self._settings.issuer
        configuration = await self._send(issuer.rstrip("/") + CONFIGURATION_PATH, IssuerConfiguration)
        if configuration.issuer != issuer:
            message = (
                f"the issuer identifies itself as {configuration.issuer[:200]!r}: set server.oidc.issuer to exactly "
                f"this value"
            )
            raise RequestRejected(Problem(reason=Reason.ANSWER_INVALID, message=message))
        return configuration

    async def _fetch_keys(self) -> dict[str, jwt.PyJWK]:
        url = (await self._configuration.value(KEPT_SECONDS)).jwks_uri
        data = await self._request("GET", url)
        try:
            keys = jwt.PyJWKSet.from_json(data.decode())
        except (jwt.PyJWTError, ValueError, AttributeError) as error:
            message = f"{url} did not return valid keys: {error}"
            raise RequestRejected(Problem(reason=Reason.ANSWER_INVALID, message=message)) from error
        return {key.key_id or "": key for key in keys if key.public_key_use in (None, "sig")}

    async def _send(
        self, url: str, model: type[M], form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> M:
        body = None if form is None else urlencode(form).encode()
        return parse(model, await self._request("GET" if body is None else "POST", url, body, headers), url)

    async def _request(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)
        proxy = self._proxies.proxy_of(url)
        return await request(
            self._session, method, url, body=body, headers=headers, proxy=proxy, timeout=self._timeout,
            max_bytes=MAX_BYTES,
        )  # fmt: skip

    def _unavailable(self, error: RequestError) -> ProblemError:
        log.warning("a login failed, because the OIDC issuer cannot be used: %s", error)
        message = (
            f"The OIDC issuer cannot be used: {error.problem.message}. Log in later, or with a token. The platform "
            f"team should check server.oidc.issuer, and whether rlrun-server can reach that URL (caBundle, proxy, "
            "networkPolicy.egress)."
        )
        return ProblemError.of(503, Reason.OIDC_ISSUER_UNAVAILABLE, message)
