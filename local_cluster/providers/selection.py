"""Choice of the provider for this machine and state directory."""

from __future__ import annotations

import os
import shutil

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.paths import paths
from local_cluster.host.shell import run
from local_cluster.providers.embedded_cluster import EmbeddedCluster
from local_cluster.providers.kind_cluster import KindCluster
from local_cluster.providers.provider import Provider


def provider() -> Provider:
    """Return the provider: `RLRUN_CLUSTER` if set, else that of an existing cluster, else kind if it works."""
    choice = os.environ.get("RLRUN_CLUSTER", "")
    if choice not in ("", "embedded", "kind"):
        raise LocalClusterError(f"RLRUN_CLUSTER is {choice!r}. Set it to `embedded` or `kind`, or unset it.")
    directories = paths()
    # An existing cluster decides: `down` must find it even if Docker was started or stopped since.
    if choice == "kind" or (not choice and KindCluster(directories).exists()):
        return KindCluster(directories)
    if choice == "embedded" or directories.kubeconfig.exists() or not kind_works():
        return EmbeddedCluster(directories)
    return KindCluster(directories)


def kind_works() -> bool:
    """True if kind is installed and a Docker engine answers."""
    if shutil.which("kind") is None or shutil.which("docker") is None:
        return False
    try:
        return run(["docker", "info", "--format", "{{.ServerVersion}}"], check=False, timeout=15).returncode == 0
    except LocalClusterError:  # a client that hangs
        return False
