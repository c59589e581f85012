"""Loopback ports that no other test of this machine takes at the same time.

Asking the kernel for a free port and closing it again leaves a moment in which another worker gets the same one. Here a
port is claimed by a Unix socket in the abstract namespace, named after the port. Such names belong to the network
namespace, as ports do, so a claim also holds between tests in containers that share the host's network but not its
`/tmp`. It goes with the process that holds it.
"""

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

LOWEST, HIGHEST = 11_000, 19_999
"""Below the range from which the kernel serves outgoing connections, also with GRPC_OFFSET added."""
GRPC_OFFSET = 10_000
"""SeaweedFS listens at port + 10000 as well."""


@contextmanager
def claimed_ports(count: int) -> Iterator[list[int]]:
    """Yield ports that are free, each with port + GRPC_OFFSET free too, and held until the end of the block."""
    with ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            port = random.randint(LOWEST, HIGHEST)
            if _claim(port, held):
                found.append(port)
        yield found


def _claim(port: int, held: ExitStack) -> bool:
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0rlrun-test-port-{port}")
        for number in (port, port + GRPC_OFFSET):
            with socket.socket() as probe:
                # As servers do: a port whose last connections are still closing is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", number))
    except OSError:
        claim.close()
        return False
    held.callback(claim.close)
    return True
