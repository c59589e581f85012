"""The node's container runtime, as others address it.

Images are imported with `ctr_command() + ["images", "import", archive]`.
"""

from __future__ import annotations

from local_cluster.paths import paths

NAMESPACE = "k8s.io"


def ctr_command() -> list[str]:
    """The argv prefix that talks to the local cluster's containerd, in the namespace the kubelet sees."""
    return ["ctr", "--address", str(paths().containerd_socket), "--namespace", NAMESPACE]
