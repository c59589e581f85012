"""Loopback ports that no other test of this machine takes at the same time.

Asking the kernel for a free port and closing it again leaves a moment in which another worker gets the same one. Here a
port is claimed by a lock on a file named after it; the lock goes with the process that holds it.
"""

import fcntl
import random
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

LOWEST, HIGHEST = 11_000, 19_999
"""Below the range from which the kernel serves outgoing connections, also with GRPC_OFFSET added."""
GRPC_OFFSET = 10_000
"""SeaweedFS listens at port + 10000 as well."""
_CLAIMS = Path(tempfile.gettempdir()) / "rlrun-test-ports"


@contextmanager
def claimed_ports(count: int) -> Iterator[list[int]]:
    """Yield ports that are free, each with port + GRPC_OFFSET free too, and held until the end of the block."""
    _CLAIMS.mkdir(exist_ok=True)
    with ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            port = random.randint(LOWEST, HIGHEST)
            if port not in found and _claim(port, held):
                found.append(port)
        yield found


def _claim(port: int, held: ExitStack) -> bool:
    file = (_CLAIMS / str(port)).open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for number in (port, port + GRPC_OFFSET):
            with socket.socket() as probe:
                # As servers do: a port whose last connections are still closing is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", number))
    except OSError:
        file.close()
        return False
    held.callback(file.close)
    return True
