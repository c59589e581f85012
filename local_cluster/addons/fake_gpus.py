"""Fake GPUs that nodes advertise, so that pods that request GPUs can be scheduled.

If a client adds an extended resource to a node's capacity, the kubelet keeps it and counts it as allocatable:
https://kubernetes.io/docs/tasks/administer-cluster/extended-resource-node/. No device reaches a container.
"""

from __future__ import annotations

import json

from local_cluster.addons.kubectl import LocalClusterKubectl
from local_cluster.host.progress import progress

RESOURCE = "nvidia.com/gpu"
LABELS = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "Fake-GPU"}
"""Labels of GPU feature discovery that tests and examples select."""
TAINT = "nvidia.com/gpu=present:NoSchedule"


def advertise(kubectl: LocalClusterKubectl, gpus: int, *, tainted: bool = False) -> None:
    """Make each node advertise `gpus` GPUs, and optionally taint it. 0 removes GPUs, labels and taint.

    Running pods stay on a tainted node.
    """
    with progress.step(f"{gpus} fake GPUs per node" if gpus else "remove fake GPUs"):
        for node in kubectl("get", "nodes", "-o", "name").split():
            patch = {"status": {"capacity": {RESOURCE: str(gpus) if gpus else None}}}
            kubectl("patch", node, "--subresource=status", "--type=merge", "-p", json.dumps(patch))
            labels = [f"{key}={value}" if gpus else f"{key}-" for key, value in LABELS.items()]
            kubectl("label", "--overwrite", node, *labels)
            if gpus and tainted:
                kubectl("taint", "--overwrite", node, TAINT)
            else:
                kubectl("taint", node, f"{RESOURCE}-", check=False)
