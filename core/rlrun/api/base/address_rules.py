"""Rules for the addresses that runs may name. They check only the text and send no requests.

Processes of the platform send requests to these addresses. These processes can reach more than user code can: Services
in the cluster, the API server, the cloud's metadata service. A run may name any address on the internet; other
addresses are refused unless the installation lists them.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

SCHEMES = ("http", "https")
INTERNAL_ENDINGS = ("internal", "local", "localhost", "svc")
"""Top-level domains that public DNS does not have. Names without a dot are internal as well."""
GLOBAL_UNICAST = IPv6Network("2000::/3")
"""Range of global unicast addresses. IPv6 addresses outside this range are not routed on the internet."""
NAT64 = IPv6Network("64:ff9b::/96")
"""Range of IPv6 addresses that a NAT64 gateway translates: their last 32 bits are an IPv4 address."""
LISTED_SINGLY: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(network), kind)
    for kind, networks in {
        "a loopback address": ("127.0.0.0/8", "::1/128"),
        "a link-local address": ("169.254.0.0/16", "fe80::/10"),
        "an address of a cloud's metadata service": (
            *("100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),
            *("fd00:ec2::/32", "fd20:ce::254/128"),
        ),
        "a multicast address": ("224.0.0.0/4", "ff00::/8"),
        "not the address of a host": ("0.0.0.0/8", "255.255.255.255/32", "::/128"),
    }.items()
    for network in networks
)
"""Networks whose addresses are allowed only if the installation lists each address, with a name for the kind of
address. A listed host name or network does not allow them.
"""
OTHER_KIND = "not an address on the internet"

_HOST = re.compile(r"([a-z0-9_*][a-z0-9_*-]*\.)*[a-z0-9_][a-z0-9_-]*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PREFIX = re.compile(r"[^/%]+(/(0|[1-9][0-9]{0,2}))?")
"""Pattern of an address or a network in CIDR notation, without netmasks and zone ids."""


@dataclass(frozen=True)
class AddressRules:
    """Private addresses that the installation allows runs to use."""

    hosts: tuple[str, ...] = ()
    """Host names in lower case. `*` matches any characters, but is not allowed in the last label."""
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> "AddressRules":
        """Parse a list of host names, IP addresses and networks. Raises ValueError, which quotes the invalid entry.

        The chart's schema (`privateAddresses`) accepts the same entries.
        """
        hosts: list[str] = []
        networks: list[Network] = []
        for entry in entries:
            text = _plain(entry)
            network = read_network(text)
            if network is not None:
                kind = _kind_of_range(network)
                if kind is not None:
                    raise ValueError(f"every address in the range {entry!r} is {kind}: list the addresses one by one")
                networks.append(network)
            elif _HOST.fullmatch(text) and not _ends_in_a_number(text):
                hosts.append(text)
            else:
                raise ValueError(
                    f"{entry!r} is not a host name, IP address or network. Valid examples: teacher.models.svc, "
                    "10.1.2.3, 10.0.0.0/8"
                )
        return cls(tuple(hosts), tuple(networks))

    def url_refusal(self, url: str) -> str | None:
        """Return the reason to refuse the URL. None means that the addresses of its host must be checked."""
        try:
            parts = urlsplit(url)
            return self.host_refusal(parts.scheme, parts.hostname)
        except ValueError:
            return "it is not a valid URL"

    def host_refusal(self, scheme: str, host: str | None) -> str | None:
        """Return the reason to refuse the scheme or host. None means that the host's addresses must be checked."""
        if scheme not in SCHEMES:
            return f"its scheme is {scheme or 'missing'}, but must be {' or '.join(SCHEMES)}"
        if not host:
            return "it has no host"
        name = _plain(host)
        address = _address(name)
        if address is not None:
            return self.address_refusal(host, address)
        if _ends_in_a_number(name):
            return f"{host} is neither a host name nor an IP address in the usual notation"
        # A listed network may contain the addresses of an internal name.
        if _is_internal(name) and not self.networks and not self._lists(name):
            return f"{host} is a name inside the cluster"
        return None

    def address_refusal(self, host: str, address: Address) -> str | None:
        """Return the reason to refuse an address that `host` resolves to, or None if it is allowed."""
        target = _target(address)
        kind = _kind_listed_singly(target)
        if kind is None and (_is_on_the_internet(target) or self._lists(_plain(host))):
            return None
        if any(target in network and (kind is None or network.num_addresses == 1) for network in self.networks):
            return None
        what = host if _plain(host) == str(address) else f"{host} has the address {address}, which"
        return f"{what} is {kind or OTHER_KIND}"

    def _lists(self, host: str) -> bool:
        return any(fnmatchcase(host, pattern) for pattern in self.hosts)


INTERNET_ONLY = AddressRules()
"""Rules of an installation that lists no address."""


def refusal_message(field: str, why: str) -> str:
    """Return the message for a user whose run has a refused URL in `field`."""
    return (
        f"`{field}` is refused: {why}. Start a new run with an http or https URL of a host on the internet, or ask the "
        "platform team to allow the host (chart value `runs.privateAddresses`)."
    )


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


def _address(text: str) -> Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def read_network(text: str) -> Network | None:
    """Parse a network. An address without a prefix is a network of one address. Returns None for any other text.

    Host bits are ignored, as in a NetworkPolicy.
    """
    if not _PREFIX.fullmatch(text):
        return None
    address = _address(text)
    try:
        return ip_network(text if address is None else _target(address), strict=False)
    except ValueError:
        return None


def _ends_in_a_number(host: str) -> bool:
    """Return whether resolvers may read the host as an IPv4 address, such as 127.1, 0x7f.1 or 2130706433."""
    return _NUMBER.fullmatch(host.rpartition(".")[2]) is not None


def _is_internal(host: str) -> bool:
    return "." not in host or host.rpartition(".")[2] in INTERNAL_ENDINGS


def _target(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for (mapped, NAT64 or 6to4), or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _kind_listed_singly(address: Address) -> str | None:
    return next((kind for network, kind in LISTED_SINGLY if address in network), None)


def _kind_of_range(network: Network) -> str | None:
    """Return the kind of address in a network of several addresses that lies within one network of LISTED_SINGLY, or
    None for other networks.
    """
    ends = network.network_address, network.broadcast_address
    if ends[0] == ends[1]:
        return None
    return next((kind for special, kind in LISTED_SINGLY if all(end in special for end in ends)), None)


def _is_on_the_internet(address: Address) -> bool:
    return address.is_global and (isinstance(address, IPv4Address) or address in GLOBAL_UNICAST)
