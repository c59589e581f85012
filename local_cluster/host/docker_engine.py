"""Check for a working Docker engine behind the `docker` command."""

from __future__ import annotations

import shutil

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.machine import require_supported
from local_cluster.host.shell import run

_FORMAT = "{{.Server.Os}} {{.Server.Arch}}"
_ANSWER_SECONDS = 15.0


def docker_problem() -> str | None:
    """Return the reason why no Docker engine can be used, or None."""
    if shutil.which("docker") is None:
        return "docker is not on PATH"
    try:
        answer = run(["docker", "version", "--format", _FORMAT], check=False, timeout=_ANSWER_SECONDS)
    except LocalClusterError as error:  # a hanging client
        return f"the Docker engine does not respond: {error}"
    words = answer.stdout.split()
    if answer.returncode != 0 or len(words) != 2:
        lines = (answer.stderr or answer.stdout).strip().splitlines()
        return f"the Docker engine does not respond: {lines[-1] if lines else '`docker version` printed nothing'}"
    try:
        require_supported(words[0].capitalize(), words[1], "The Docker engine")
    except LocalClusterError as error:
        return str(error)
    return None
