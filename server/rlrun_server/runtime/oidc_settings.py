"""Settings for logins at an OpenID Connect issuer."""

from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from rlrun.api.base.schema import Schema

RESERVED = "system:"
"""Prefix of names to which Kubernetes itself gives rights. Names from an issuer must not have it."""


def check_url(url: str) -> str:
    """Check that the URL uses https, or http with a loopback address, and return it. Raises ValueError."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if not host or parts.scheme not in ("http", "https") or (parts.scheme == "http" and not _is_loopback(host)):
        raise ValueError(f"{url[:200]!r} must begin with https:// (http:// is accepted for a loopback address only)")
    return url


def check_prefix(prefix: str) -> str:
    """Check that the prefix does not begin with RESERVED, and return it. Raises ValueError."""
    if prefix.startswith(RESERVED):
        raise ValueError(f"{prefix!r} must not begin with {RESERVED}, which is reserved for Kubernetes")
    return prefix


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


Url = Annotated[str, Field(max_length=2048), AfterValidator(check_url)]
Prefix = Annotated[str, AfterValidator(check_prefix)]


class OidcSettings(Schema):
    """Settings for the issuer, the client and the names of users (`server.oidc` in the chart's values). Claims and
    prefixes have the same meaning as in kube-apiserver's options.
    """

    issuer: Url
    client_id: str = Field(min_length=1)
    redirect_url: Url
    """URL of the web page to which the issuer redirects browsers."""
    scopes: tuple[str, ...] = ("openid",)
    impersonate: bool = False
    """Impersonate the users that ID tokens name. If False, the ID token is the credential, and the API server must
    accept it.
    """
    username_claim: str = Field(default="sub", min_length=1)
    username_prefix: Prefix = ""
    groups_claim: str = "groups"
    """Claim with the groups of a user. If empty, users have no groups."""
    groups_prefix: Prefix = ""
    session_seconds: int = Field(default=0, ge=0)
    """Lifetime of a session in seconds, used only with `impersonate`. 0 selects the lifetime of the ID token."""
