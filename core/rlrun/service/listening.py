"""Sockets on which a process listens, for addresses of both families, and a limit of their open connections."""

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Callable

from typing_extensions import override

BACKLOG = 1024
MAX_CONNECTIONS = 64
EVERYWHERE = ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"))
NO_FAMILY = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})
"""Errors of a kernel without addresses of a family, for example with `ipv6.disable=1`."""


def listen(host: str | None, port: int) -> list[socket.socket]:
    """Return sockets of one address, or of all addresses of this host: of IPv4, of IPv6, or of both.

    `port`: 0 takes a free one, the same for both families. Raises OSError if the port is in use.
    """
    if host is not None:
        return [_listen(socket.AF_INET6 if ":" in host else socket.AF_INET, host, port)]
    sockets: list[socket.socket] = []
    for family, address in EVERYWHERE:
        own = sockets[0].getsockname()[1] if sockets else port
        try:
            sockets.append(_listen(family, address, own))
        except OSError as error:
            if error.errno in NO_FAMILY and (sockets or family == socket.AF_INET):
                continue
            for opened in sockets:
                opened.close()
            if port == 0 and sockets and error.errno == errno.EADDRINUSE:
                return listen(None, 0)
            raise
    return sockets


def _listen(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    # With this protocol, and not with the default 0, asyncio sends short packets without waiting for others. Responses
    # otherwise take the 40 ms of a delayed acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # One socket for both families would depend on `net.ipv6.bindv6only`, and show IPv4 clients as mapped ones.
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


class OpenConnections:
    """Protocols of a server with short requests, such as probes, each of which counts while its connection is open.

    A new connection makes the oldest one of the address with the most end. Clients that send nothing, or do not take
    their answers, therefore never keep a probe out.
    """

    def __init__(self, make: Callable[[], asyncio.Protocol], limit: int = MAX_CONNECTIONS) -> None:
        """`make` returns the protocol of a connection."""
        self._make = make
        self._limit = limit
        self._open: dict[asyncio.Transport, str] = {}
        """Addresses of the connections, oldest first."""

    @property
    def count(self) -> int:
        """Number of open connections."""
        return len(self._open)

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return _Counted(self, self._make())

    def add(self, transport: asyncio.Transport) -> None:
        """Count a connection, and end another one if there are too many."""
        self._open[transport] = str((transport.get_extra_info("peername") or [""])[0])
        if len(self._open) > self._limit:
            ((most, _),) = Counter(self._open.values()).most_common(1)
            oldest = next(other for other, address in self._open.items() if address == most)
            self.remove(oldest)
            # Closing would wait for the client.
            oldest.abort()

    def remove(self, transport: asyncio.Transport) -> None:
        """Stop counting a connection."""
        self._open.pop(transport, None)


class _Counted(asyncio.Protocol):
    def __init__(self, connections: OpenConnections, protocol: asyncio.Protocol) -> None:
        self._connections = connections
        self._protocol = protocol
        self._transport: asyncio.Transport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(transport)
        self._protocol.connection_made(transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._connections.remove(self._transport)
        self._protocol.connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        self._protocol.data_received(data)

    @override
    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    @override
    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    @override
    def resume_writing(self) -> None:
        self._protocol.resume_writing()
