"""Defense against cross-site requests with the user's cookie (CSRF)."""

from urllib.parse import urlsplit

from starlette.requests import Request

HEADER = "X-Rlrun"
"""Header of the page's own requests. Other sites cannot set it, because CORS does not allow it."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_SITES = frozenset({"same-origin", "none"})
"""Values of `Sec-Fetch-Site` in requests of the page itself, and in requests for a URL that the user entered."""
DEFAULT_PORTS = {"http": 80, "https": 443}
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def cross_site_reason(request: Request) -> str | None:
    """Return why a request with a cookie is considered a cross-site request, or None if it is not."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None and site not in OWN_SITES:
        return f"the browser sent it for a different site (Sec-Fetch-Site: {site[:20]!r})"
    if request.method in SAFE_METHODS:
        return None
    if request.headers.get(HEADER) != "1":
        return f"it lacks the header {HEADER}: 1"
    origin = request.headers.get("Origin")
    if origin is not None and not _is_own(origin, request):
        return f"its Origin {origin[:100]!r} is not the host of this server"
    return None


def is_plain_loopback(request: Request) -> bool:
    """Return whether the browser uses this server without TLS on its own machine, such as through a forwarded port."""
    return request.url.scheme == "http" and _host_of(request)[0] in LOOPBACK


def is_sent_in_clear(request: Request) -> bool:
    """Return whether the browser reports that its page was loaded over a network without TLS."""
    address = _split(request.headers.get("Origin", ""))
    return address is not None and address[0] == "http" and address[1] not in LOOPBACK


def _is_own(origin: str, request: Request) -> bool:
    # Ignore the scheme: behind an Ingress the request arrives without the browser's TLS.
    parts = _split(origin)
    if parts is None:
        return False
    scheme, host, port = parts
    own_host, own_port = _host_of(request)
    default = DEFAULT_PORTS[scheme]
    return host == own_host and (port or default) == (own_port or default)


def _host_of(request: Request) -> tuple[str, int | None]:
    parts = _split(f"http://{request.headers.get('Host', '')}")
    return (parts[1], parts[2]) if parts else ("", None)


def _split(origin: str) -> tuple[str, str, int | None] | None:
    try:
        parts = urlsplit(origin)
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            return None
        return parts.scheme, parts.hostname, parts.port
    except ValueError:
        return None
