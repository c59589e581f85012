"""Listening sockets for both address families, and a limit on open connections."""

import asyncio
import contextlib
import errno
import resource
import socket
from collections.abc import Callable, Iterator

from typing_extensions import override

BACKLOG = 1024
MAX_CONNECTIONS = 64
"""Maximum number of connections to a server for probes, metrics and a few clients of the platform."""
MANY_CONNECTIONS = 16_384
"""Maximum number of connections to a server that receives one request per rollout in progress. A connection takes 6 kB,
or up to 128 kB while a body arrives.
"""
OTHER_FILES = 512
"""Number of file descriptors reserved for files other than connections."""
EVERYWHERE = ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"))
NO_FAMILY = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})
"""Errors of a kernel that does not support an address family, for example with `ipv6.disable=1`."""

_ByAddress = dict[str, dict[asyncio.BaseTransport, None]]


def listen(host: str | None, port: int) -> list[socket.socket]:
    """Return sockets that listen on `host`, or on all IPv4 and IPv6 addresses of this machine if it is None.

    Port 0 selects a free port, the same for both families. Raises OSError, for example if the port is in use.
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
    # asyncio sends short packets immediately with this protocol, but not with the default 0. Otherwise responses are
    # delayed by the 40 ms of a delayed acknowledgment.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # One socket for both families would depend on `net.ipv6.bindv6only`, and report IPv4 clients as mapped
            # addresses.
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def allow_connections(wanted: int) -> int:
    """Raise the process's open-file limit for `wanted` connections. Returns how many of them the limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - OTHER_FILES))


class OpenConnections:
    """Factory of protocols that limits the number of open connections.

    Beyond the limit, a new connection closes an idle connection (without a request in progress) of the address with the
    most idle connections: the one that has been idle longest. If no connection is idle, it closes the one with the
    oldest request of the address with the most connections. Clients that send nothing, or do not read their responses,
    therefore cannot block others or abort their requests.
    """

    def __init__(self, make: Callable[[], asyncio.Protocol], limit: int = MAX_CONNECTIONS) -> None:
        """`make` creates the protocol for a connection."""
        self._make = make
        self._limit = limit
        self._addresses: dict[asyncio.BaseTransport, str] = {}
        self._idle: _ByAddress = {}
        """Idle connections by address, the one that has been idle longest first."""
        self._busy: _ByAddress = {}

    @property
    def count(self) -> int:
        """Number of open connections."""
        return len(self._addresses)

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol for a new connection."""
        return _Counted(self, self._make())

    def add(self, transport: asyncio.Transport) -> None:
        """Count a connection. If the limit is exceeded, closes another connection."""
        if len(self._addresses) >= self._limit:
            connections = self._idle or self._busy
            most = max(connections, key=lambda address: len(connections[address]))
            oldest = next(iter(connections[most]))
            self.remove(oldest)
            assert isinstance(oldest, asyncio.Transport)
            # Abort, because closing would wait for the client.
            oldest.abort()
        self._addresses[transport] = str((transport.get_extra_info("peername") or [""])[0])
        self._put(self._idle, transport)

    def remove(self, transport: asyncio.BaseTransport) -> None:
        """Stop counting a connection."""
        if transport in self._addresses:
            self._take(self._idle, transport)
            self._take(self._busy, transport)
            del self._addresses[transport]

    @contextlib.contextmanager
    def handling(self, transport: asyncio.BaseTransport | None) -> Iterator[None]:
        """Return a context in which the connection counts as busy with a request."""
        self._move(transport, self._idle, self._busy)
        try:
            yield
        finally:
            self._move(transport, self._busy, self._idle)

    def _move(self, transport: asyncio.BaseTransport | None, begin: _ByAddress, end: _ByAddress) -> None:
        if transport is not None and transport in self._addresses:
            self._take(begin, transport)
            self._put(end, transport)

    def _put(self, connections: _ByAddress, transport: asyncio.BaseTransport) -> None:
        connections.setdefault(self._addresses[transport], {})[transport] = None

    def _take(self, connections: _ByAddress, transport: asyncio.BaseTransport) -> None:
        address = self._addresses[transport]
        of_address = connections.get(address, {})
        of_address.pop(transport, None)
        if not of_address:
            connections.pop(address, None)


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
