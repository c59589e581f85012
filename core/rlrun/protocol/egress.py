"""Grants for environments to connect to hosts outside the cluster through the platform's egress proxy.

The operator signs a grant and sets it as the password in the proxy URL of the environment's pod. The proxy only
verifies the signature, so it needs neither a list of runs nor the Kubernetes API. A client sends the grant with each
CONNECT (RFC 9110, section 9.3.6) in `Proxy-Authorization: Basic` (RFC 7617).
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from pydantic import Field

from rlrun.api.base.names import Text
from rlrun.api.base.schema import Schema
from rlrun.protocol import signed_text

USER = "rlrun"
"""User name in the proxy URL. The password is the signed grant."""
HTTPS_PORT = 443
"""Port of a host that is listed without a port."""
NOT_SIGNED = "the credentials are not signed by this platform"


class GrantError(ValueError):
    """Raised if a grant is not signed with one of the keys, or has expired."""


class Destination(NamedTuple):
    """Host and port of a connection. In a list of allowed hosts, the host may begin with `*.`, which matches one or
    more labels.
    """

    host: Text
    port: int

    @classmethod
    def parse(cls, text: str) -> "Destination":
        """Parse `host` or `host:port`. Raises ValueError."""
        host, colon, port = text.rpartition(":")
        if not colon:
            return cls(_plain(text), HTTPS_PORT)
        if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
            raise ValueError(f"{text!r} has no port from 1 to 65535 after its last colon")
        return cls(_plain(host), int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class EgressGrant(Schema):
    """Hosts that one environment of a run may connect to."""

    namespace: Text
    run: Text
    uid: Text
    environment: Text
    """Component of the environment: env-0, eval-1."""
    hosts: list[Text] = Field(max_length=256)
    """Hosts as in env[].egress."""
    expires: datetime

    def allows(self, destination: Destination) -> bool:
        """Return whether the environment may connect to the destination."""
        return is_listed(destination, self.hosts)


def is_listed(destination: Destination, hosts: Iterable[str]) -> bool:
    """Return whether the list contains the destination or a wildcard that matches it. The destination may be a wildcard
    itself.
    """
    return any(_stands_for(Destination.parse(host), destination) for host in hosts)


def sign(grant: EgressGrant, key: bytes) -> str:
    """Return the grant as signed text that is valid in a URL."""
    return signed_text.sign(grant, key)


def verify(text: str, keys: Sequence[bytes], now: datetime) -> EgressGrant:
    """Verify a signed grant. Raises GrantError. The error's message contains nothing that helps to forge a grant."""
    grant = signed_text.verify(text, keys, EgressGrant)
    if grant is None:
        raise GrantError(NOT_SIGNED)
    if grant.expires <= now:
        raise GrantError("the credentials have expired: a new attempt of the run gets new ones")
    return grant


def _stands_for(listed: Destination, destination: Destination) -> bool:
    if listed.port != destination.port:
        return False
    if listed.host.startswith("*."):
        return destination.host.endswith(listed.host[1:]) and destination.host != listed.host[1:]
    return listed.host == destination.host


def _plain(host: str) -> str:
    return host.lower().rstrip(".")
