"""Source of a connection, as limits count it. Pure."""

from ipaddress import IPv6Address, IPv6Network, ip_address

IPV6_PREFIX = 64
"""Bits of the network that one host usually has for itself, with 2^64 addresses."""


def source_of(host: str) -> str:
    """Return the IPv4 address of the host, or its IPv6 network."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address) if address.is_loopback else str(IPv6Network((int(address), IPV6_PREFIX), strict=False))
