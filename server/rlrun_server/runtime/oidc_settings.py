"""Settings of logins at an OpenID Connect issuer."""

from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from rlrun.api.base.schema import Schema

RESERVED = "system:"
"""Begin of names that Kubernetes gives rights itself. No issuer may say them."""


def check_url(url: str) -> str:
    """Return a URL with https, or with http for this machine. Raises ValueError."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if not host or parts.scheme not in ("http", "https") or (parts.scheme == "http" and not _is_loopback(host)):
        raise ValueError(f"{url[:200]!r} must begin with https://")
    return url


def check_prefix(prefix: str) -> str:
    """Return a prefix of names that does not lead to reserved ones. Raises ValueError."""
    if prefix.startswith(RESERVED):
        raise ValueError(f"{prefix!r} must not begin with {RESERVED}, as names of Kubernetes itself do")
    return prefix


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


Url = Annotated[str, Field(max_length=2048), AfterValidator(check_url)]
Prefix = Annotated[str, AfterValidator(check_prefix)]


class OidcSettings(Schema):
    """Issuer, client and names of users: `server.oidc` of the chart. Claims and prefixes are as for kube-apiserver."""

    issuer: Url
    client_id: str = Field(min_length=1)
    redirect_url: Url
    """Address of the page, to which the issuer sends browsers back."""
    scopes: tuple[str, ...] = ("openid",)
    impersonate: bool = False
    """Act as the users that ID tokens name. False: the ID token is the credential, which the API server must accept."""
    username_claim: str = Field(default="sub", min_length=1)
    username_prefix: Prefix = ""
    groups_claim: str = "groups"
    """Empty: users have no groups."""
    groups_prefix: Prefix = ""
    session_seconds: int = Field(default=0, ge=0)
    """Length of a session with `impersonate`. 0: that of the ID token."""
