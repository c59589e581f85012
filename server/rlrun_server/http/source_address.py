"""Source of a connection, as limits count it. Pure."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

IPV6_PREFIX = 64
"""Bits of the network that one host on the internet usually has for itself, with 2^64 addresses."""
LOCAL_NETWORKS = tuple(map(IPv6Network, ("fc00::/7", "fe80::/10")))
"""Unique local and link-local addresses, which the internet does not route."""


def source_of(host: str, own: str = "") -> str:
    """Return the IPv4 address of the host, its IPv6 network, or the IPv6 address of one that is near.

    Hosts with local addresses, and those in the /64 of `own`, this server's address on the connection, are pods and
    nodes that share a network and have one address each.
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
