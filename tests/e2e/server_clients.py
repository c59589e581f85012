"""Users of rlrun-server outside of the cluster: its address on this machine, and API keys. Ports of other pods too."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from demo.install import SYSTEM_NAMESPACE, let_users_in, rlrun, user_variables
from demo.kubectl import Kubectl

PORT = 8080
"""Port of a pod without TLS, which only `kubectl port-forward` reaches."""


@contextmanager
def forwarded(kubectl: Kubectl, namespace: str, target: str, port: int) -> Iterator[str]:
    """Forward a free port of this machine to a pod while the context is open, and yield its URL."""
    command = [kubectl.program, "port-forward", "-n", namespace, target, f":{port}"]
    with subprocess.Popen(command, env=user_variables(kubectl), stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            assert found, f"kubectl port-forward says {line!r}"
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            process.terminate()


@contextmanager
def server_on_loopback(kubectl: Kubectl) -> Iterator[str]:
    """Forward a free port of this machine to rlrun-server while the context is open, and yield its URL."""
    with forwarded(kubectl, SYSTEM_NAMESPACE, "deployment/rlrun-server", PORT) as url:
        yield url


def api_key(kubectl: Kubectl, namespace: str) -> str:
    """Create an API key of the namespace, as a user does it."""
    let_users_in(kubectl, namespace)
    return rlrun(kubectl, "key", "create", "-n", namespace, "--days", "1").strip()
