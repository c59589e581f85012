"""Verifies ID tokens from an OpenID Connect issuer, and reads the user's name and groups from them."""

import hmac
from typing import Any

import jwt

from rlrun_server.runtime.oidc_settings import RESERVED, OidcSettings

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Asymmetric signature algorithms. Other signatures could be forged with the public key, or without a key."""
LEEWAY_SECONDS = 30
MAX_NAME = 256
"""Maximum length of a user or group name, including the prefix."""


class TokenRefused(Exception):
    """Raised if the token does not prove a login or contains no valid user name. The message says what to change."""


def key_id_of(token: str) -> str:
    """Return the signing key's id in the token's header, or an empty string. Raises TokenRefused."""
    try:
        return str(jwt.get_unverified_header(token).get("kid") or "")
    except jwt.PyJWTError as error:
        raise TokenRefused(f"The issuer's ID token cannot be read: {error}.") from error


def verify(token: str, key: jwt.PyJWK, settings: OidcSettings, nonce: str) -> dict[str, Any]:
    """Verify an ID token and its nonce, and return the token's claims. Raises TokenRefused."""
    try:
        claims = jwt.decode(
            token,
            # Keys need not contain their algorithm, and PyJWT would assume RS256 for all RSA keys.
            key.key,
            algorithms=ALGORITHMS,
            audience=settings.client_id,
            issuer=settings.issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iat", "iss", "aud", "sub"]},
        )
    except jwt.PyJWTError as error:
        message = (
            f"The issuer's ID token is not valid: {error}. Compare server.oidc in the chart with the client's settings "
            f"at the issuer."
        )
        raise TokenRefused(message) from error
    if not hmac.compare_digest(str(claims.get("nonce", "")).encode(errors="replace"), nonce.encode()):
        raise TokenRefused("The issuer's ID token belongs to a different login. Log in again.")
    party = claims.get("azp")
    if party != settings.client_id and (party is not None or _is_for_several(claims)):
        raise TokenRefused("The issuer's ID token is for a different client (azp). Compare server.oidc.clientId.")
    return claims


def user_of(claims: dict[str, Any], settings: OidcSettings) -> tuple[str, tuple[str, ...]]:
    """Return the names of the user and of the user's groups, with the prefixes from `settings`. Raises TokenRefused."""
    claim = settings.username_claim
    if claim == "email" and claims.get("email_verified", True) is not True:
        raise TokenRefused(
            "The issuer has not verified the e-mail address. Verify it at the issuer, then log in again."
        )
    name = _name(claims.get(claim), "usernameClaim", claim, settings.username_prefix)
    groups = claims.get(settings.groups_claim) or []
    if isinstance(groups, str):
        groups = [groups]
    if not isinstance(groups, list):
        raise TokenRefused(
            f"Claim {settings.groups_claim} of the ID token is not a list of names. Set server.oidc.groupsClaim to a "
            f"claim that lists the user's groups."
        )
    return name, tuple(_name(group, "groupsClaim", settings.groups_claim, settings.groups_prefix) for group in groups)


def _is_for_several(claims: dict[str, Any]) -> bool:
    return isinstance(claims["aud"], list) and len(claims["aud"]) > 1


def _name(value: object, field: str, claim: str, prefix: str) -> str:
    """Return the name with its prefix. Raises TokenRefused for a reserved name, or one that a header cannot contain."""
    name = f"{prefix}{value}"
    if (
        not isinstance(value, str)
        or not value
        or not name.isprintable()
        or name != name.strip()
        or len(name) > MAX_NAME
    ):
        message = (
            f"Claim {claim} of the ID token is not a name of 1 to {MAX_NAME} printable characters. Change it at the "
            f"issuer, or set server.oidc.{field} to another claim."
        )
        raise TokenRefused(message)
    if name.startswith(RESERVED):
        message = (
            f"The ID token contains the name {name!r}; names that begin with {RESERVED} are reserved for Kubernetes. "
            f"Set a prefix in server.oidc.{field.removesuffix('Claim')}Prefix."
        )
        raise TokenRefused(message)
    return name
