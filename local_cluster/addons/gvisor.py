"""RuntimeClass for pods that run on gVisor instead of the node's kernel."""

from __future__ import annotations

import json

from local_cluster.addons.kubectl import LocalClusterKubectl
from local_cluster.node.node_config import GVISOR_HANDLER

RUNTIME_CLASS = "gvisor"


def install_gvisor_class(kubectl: LocalClusterKubectl) -> None:
    """Create the RuntimeClass."""
    manifest = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": RUNTIME_CLASS},
        "handler": GVISOR_HANDLER,
    }
    kubectl.apply(json.dumps(manifest))
