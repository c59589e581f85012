"""A pod's log hold: a native sidecar that keeps an ended pod until the logs of its containers are kept.

    python -m rlrun.service.containers.log_hold SECONDS

A kubelet removes the containers of a deleted pod, with their logs, within a second after the last one has ended,
also if its object has a finalizer. It ends a native sidecar after all other containers, so the logs stay while the
sidecar runs. The operator connects, receives ENDED, copies the logs, and answers KEPT. Without an answer the sidecar
ends after SECONDS. It opens no file and has no credential.
"""

import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from rlrun.constants import LOG_HOLD_PORT

ENDED = b"ended\n"
"""Sent to each client once all other containers have ended."""
KEPT = b"kept\n"
"""Answer of the operator: the logs are copied, or will not be."""
CONNECTIONS = 16
"""Connections that wait for ENDED."""


def hold(server: socket.socket, seconds: float) -> bool:
    """Tell all clients that the containers have ended. Returns whether one answered KEPT within `seconds`."""
    deadline = time.monotonic() + seconds
    waiting = [server]
    while (left := deadline - time.monotonic()) > 0:
        for ready in select.select(waiting, [], [], left)[0]:
            try:
                if ready is server:
                    client, _ = server.accept()
                    client.sendall(ENDED)
                    waiting.append(client)
                    continue
                answer = ready.recv(len(KEPT))
            except OSError:
                answer = b""
            if answer == KEPT:
                return True
            if ready is not server:
                waiting.remove(ready)
                ready.close()
        # The oldest go first, so that strangers who stay connected do not keep the operator out.
        for oldest in waiting[1 : max(1, len(waiting) - CONNECTIONS)]:
            waiting.remove(oldest)
            oldest.close()
    return False


def main(arguments: Sequence[str]) -> int:
    """Wait for SIGTERM, then hold. Returns 0 in all cases: a hold that fails must not disturb its pod."""
    # Process 1 of a container never receives a signal that has no handler, unless the signal is blocked.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        # Clients that connect before the end wait in the backlog.
        server = socket.create_server(("", LOG_HOLD_PORT), backlog=CONNECTIONS, **_families())
    except OSError as error:
        print(f"The logs of this pod are not held: port {LOG_HOLD_PORT} cannot be opened: {error}", file=sys.stderr)
        signal.sigwait({signal.SIGTERM})
        return 0
    with server:
        signal.sigwait({signal.SIGTERM})
        if not hold(server, float(arguments[0])):
            print("The operator did not copy the logs of this pod in time; their ends may be lost.", file=sys.stderr)
    return 0


def _families() -> dict[str, Any]:
    """Return the options of `create_server` for all addresses of the families that the node has."""
    return {"family": socket.AF_INET6, "dualstack_ipv6": True} if socket.has_dualstack_ipv6() else {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
