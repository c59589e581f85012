"""Credentials, source and conditional headers of a request."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Protocol

from rlrun.protocol.user_storage import TOKEN_HEADER
from starlette.requests import Request

IPV6_PREFIX = 64
"""Prefix length of the IPv6 network that a host on the internet usually controls."""
LOCAL_NETWORKS = tuple(map(IPv6Network, ("fc00::/7", "fe80::/10")))
"""Unique local and link-local addresses, which the internet does not route."""


def source_of(host: str, own: str = "") -> str:
    """Return the source to which a connection from `host` is attributed: an IPv4 address, or the /64 network of an IPv6
    address.

    For local IPv6 addresses, returns the full address, because pods and nodes share a network but have one address
    each. Addresses in the /64 network of `own`, which is this server's address, are local, too.
    """
    address = _parse(host)
    if not isinstance(address, IPv6Address):
        return host if address is None else str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    network = IPv6Network((int(address), IPV6_PREFIX), strict=False)
    is_near = address.is_loopback or any(address in local for local in LOCAL_NETWORKS) or _is_in(_parse(own), network)
    return str(address) if is_near else str(network)


def _parse(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _is_in(address: IPv4Address | IPv6Address | None, network: IPv6Network) -> bool:
    return isinstance(address, IPv6Address) and address in network


SCHEME = "Bearer "
SESSIONS = "rlrun.sessions"
"""Key of the browser sessions in the scope of a request, for applications that accept cookies."""


class CookieReader(Protocol):
    """Reader of the credential in a request's cookie."""

    def token_of(self, request: Request) -> str:
        """Return the credential, or an empty string. Raises ProblemError for a cross-site request."""
        ...


def bearer_of(request: Request) -> str:
    """Return the token in `Authorization`, or an empty string."""
    given = request.headers.get("Authorization", "")
    return given.removeprefix(SCHEME) if given.startswith(SCHEME) else ""


def header_token_of(request: Request) -> str:
    """Return the credential in `Authorization` or, because proxies may remove this header, in TOKEN_HEADER. Returns an
    empty string if there is none.
    """
    return bearer_of(request) or request.headers.get(TOKEN_HEADER, "")


def user_token_of(request: Request) -> str:
    """Return a user's credential from a header or the session cookie, or an empty string. Raises ProblemError for a
    cross-site request with the cookie.
    """
    sessions: CookieReader | None = request.scope.get(SESSIONS)
    return header_token_of(request) or ("" if sessions is None else sessions.token_of(request))


def has_tag(request: Request, tag: str) -> bool:
    """Return whether `If-None-Match` contains the tag. Weak tags match too, because proxies weaken ETags."""
    return tag in (each.strip().removeprefix("W/") for each in request.headers.get("If-None-Match", "").split(","))


def client_of(request: Request) -> str:
    """Return the key for limits per address: the client's address or IPv6 network, or an empty string if unknown."""
    own = request.scope.get("server") or ("", None)
    return source_of(request.client.host, own[0]) if request.client is not None else ""
