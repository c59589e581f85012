"""State of a node: whether its kubelet can end the pods that are deleted."""

from rlrun.kube.objects import Obj

LOST_TAINTS = frozenset(
    {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/out-of-service",
    }
)
"""Taints of nodes that do not report, do not work, or are off. Healthy nodes may have others."""


def is_lost(node: Obj | None) -> bool:
    """Return whether the node ends no pods: it does not exist, does not report or is not ready."""
    if node is None:
        return True
    taints = {taint["key"] for taint in node.get("spec", {}).get("taints") or []}
    conditions = node.get("status", {}).get("conditions") or []
    return bool(taints & LOST_TAINTS) or any(c["type"] == "Ready" and c["status"] != "True" for c in conditions)
