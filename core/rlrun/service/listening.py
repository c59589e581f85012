"""Sockets on which a process listens, for addresses of both families."""

import errno
import socket

BACKLOG = 1024
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
