"""Log hold: a native sidecar that keeps a terminating pod until its logs are copied.

python -m rlrun.service.containers.log_hold SECONDS

A kubelet removes the containers of a deleted pod, with their logs, within a second after the last one has ended, even
if the Pod object has a finalizer. The kubelet stops native sidecars after all other containers, so the logs are kept
while the sidecar runs. The operator connects, receives ENDED, copies the logs, and responds with KEPT. If there is
no response, the sidecar exits after SECONDS. The sidecar opens no files and has no credentials.
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
"""Message that is sent to each client once all other containers have ended."""
KEPT = b"kept\n"
"""Response of the operator: the logs have been copied, or will not be copied."""
CONNECTIONS = 16
"""Maximum number of connections that wait for ENDED, and of connections on which KEPT is awaited."""


def hold(server: socket.socket, seconds: float) -> bool:
    """Notify all clients that the containers have ended. Returns whether a client responded with KEPT within
    `seconds`.
    """
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
        # Close the oldest connections first, so that other clients that stay connected do not block the operator.
        for oldest in waiting[1 : max(1, len(waiting) - CONNECTIONS)]:
            waiting.remove(oldest)
            oldest.close()
    return False


def main(arguments: Sequence[str]) -> int:
    """Wait for SIGTERM, then delay the pod's termination. Always returns 0: a failure must not affect the pod."""
    # Block the signal, because process 1 of a container does not receive signals that have no handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        # Clients that connect earlier wait in the backlog.
        server = socket.create_server(("", LOG_HOLD_PORT), backlog=CONNECTIONS, **_families())
    except OSError as error:
        print(
            f"The pod cannot wait for its logs to be copied, because port {LOG_HOLD_PORT} cannot be opened: {error}",
            file=sys.stderr,
        )
        signal.sigwait({signal.SIGTERM})
        return 0
    with server:
        signal.sigwait({signal.SIGTERM})
        if not hold(server, float(arguments[0])):
            print(
                "The operator did not copy the logs of this pod in time; the last lines may be lost.", file=sys.stderr
            )
    return 0


def _families() -> dict[str, Any]:
    """Return the options of `create_server` for the address families of the node."""
    return {"family": socket.AF_INET6, "dualstack_ipv6": True} if socket.has_dualstack_ipv6() else {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
