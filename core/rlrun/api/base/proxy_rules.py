"""Choice between a proxy and a direct connection to a URL, based on environment variables. Sends no requests.

Libraries read NO_PROXY in different ways: urllib, botocore, httpx and aiohttp ignore networks in it and would reach
10.1.2.3 through the proxy although `10.0.0.0/8` is listed. All clients of the project use this module instead.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

HTTPS_PROXY, HTTP_PROXY, NO_PROXY = "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class ProxyRules:
    """Proxies of an installation or a machine, and the hosts that are reached without a proxy."""

    https: str = ""
    """URL of the proxy for https:// URLs, empty for none."""
    http: str = ""
    """URL of the proxy for http:// URLs, empty for none."""
    direct: tuple[str, ...] = ()
    """Entries of NO_PROXY: hosts, domains (with all hosts below them) or addresses, each with an optional port;
    networks, without a port; or `*` for all. As in Go, a network with a port matches nothing.
    """

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> "ProxyRules":
        """Read HTTPS_PROXY, HTTP_PROXY and NO_PROXY. Names in lower case take precedence, as for curl and Python."""

        def read(name: str) -> str:
            return (environment.get(name.lower()) or environment.get(name) or "").strip()

        return cls(_with_scheme(read(HTTPS_PROXY)), _with_scheme(read(HTTP_PROXY)), split_entries(read(NO_PROXY)))

    def proxy_of(self, url: str) -> str | None:
        """Return the URL of the proxy for requests to `url`, or None if they are sent directly."""
        parts = urlsplit(url)
        proxy = {"https": self.https, "http": self.http}.get(parts.scheme, "")
        if not proxy or self.is_direct(parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]):
            return None
        return proxy

    def is_direct(self, host: str, port: int) -> bool:
        """Return whether an entry of NO_PROXY matches the host and port."""
        name = host.lower().rstrip(".")
        return any(_matches(entry, name, port) for entry in self.direct)


NO_PROXIES = ProxyRules()
"""Rules of an installation without a proxy."""


def split_entries(text: str) -> tuple[str, ...]:
    """Split NO_PROXY at commas and spaces, and return its entries in lower case."""
    return tuple(text.lower().replace(",", " ").split())


def missing_entries(rules: ProxyRules, urls: Iterable[str]) -> list[str]:
    """Return the hosts of `urls` that are in a network of NO_PROXY. Clients that ignore networks need a separate entry
    for each of these hosts.
    """
    hosts = [urlsplit(url).hostname or "" for url in urls]
    return sorted({host for host in hosts if any(_is_in_network(host, entry) for entry in rules.direct)})


def _matches(entry: str, host: str, port: int) -> bool:
    if entry == "*" or _is_in_network(host, entry):
        return True
    listed, listed_port = _split_port(entry)
    if listed_port and listed_port != str(port):
        return False
    if _is_address(listed) or _is_address(host):
        return _same_address(listed, host)
    domain = listed.removeprefix("*").strip(".")
    return bool(domain) and (host == domain or host.endswith(f".{domain}"))


def _split_port(entry: str) -> tuple[str, str]:
    """Split an entry into host and port, and remove the brackets of an IPv6 address."""
    if entry.startswith("["):
        host, _, rest = entry[1:].partition("]")
        return host, rest.removeprefix(":")
    if entry.count(":") != 1:
        return entry, ""
    host, _, port = entry.partition(":")
    return host, port


def _is_in_network(host: str, entry: str) -> bool:
    if "/" not in entry:
        return False
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        return False


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _same_address(first: str, second: str) -> bool:
    try:
        return ip_address(first) == ip_address(second)
    except ValueError:
        return False


def _with_scheme(proxy: str) -> str:
    """Return the URL of a proxy, with http:// added if it has no scheme, as in curl and Go."""
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"
