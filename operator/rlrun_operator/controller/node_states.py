"""Reads the nodes of evicted pods, because a pod's status does not show which taint evicts the pod."""

import logging
from collections.abc import Callable, Iterable

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import NODE
from rlrun.kube.objects import Obj
from rlrun.kube.pods import Pod

from rlrun_operator.runtime.cache_expiry import drop_expired

log = logging.getLogger(__name__)

LOST_TAINTS = frozenset(
    {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/out-of-service",
    }
)
"""Taints of nodes that do not report, have failed or are shut down. Healthy nodes may have other taints."""

KEPT_SECONDS = 5.0
"""Seconds for which the state of a node is reused for all runs with pods on the node."""


class NodeStates:
    """States of the nodes of evicted pods. Reads each node at most once per KEPT_SECONDS, except before decisions."""

    def __init__(self, cluster: AsyncKubeClient, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._known: dict[str, tuple[float, bool]] = {}
        """Time of the latest read and whether the node was lost, by node name in the order of the reads."""

    async def find_lost(self, pods: Iterable[Pod], *, is_fresh: bool = False) -> frozenset[str]:
        """Return the names of the lost nodes from which a taint evicts `pods`. If `is_fresh`, nodes are read again."""
        evicted = {pod.node for pod in pods if pod.is_evicted_by_taint and pod.is_leaving and pod.is_alive}
        return frozenset([name for name in sorted(evicted - {""}) if await self._is_lost(name, is_fresh=is_fresh)])

    async def _is_lost(self, name: str, *, is_fresh: bool) -> bool:
        drop_expired(self._known, self._clock() - KEPT_SECONDS)
        if is_fresh or name not in self._known:
            try:
                found = is_lost(await self._cluster.get(NODE, None, name))
            except ApiError as error:
                log.warning("Could not read node %s, so the operator does not delete its evicted pods: %s", name, error)
                found = False
            self._known.pop(name, None)
            self._known[name] = self._clock(), found
        return self._known[name][1]


def is_lost(node: Obj | None) -> bool:
    """Return whether the node cannot terminate pods: it does not exist, is not ready or has a taint in LOST_TAINTS."""
    if node is None:
        return True
    taints = {taint["key"] for taint in node.get("spec", {}).get("taints") or []}
    conditions = node.get("status", {}).get("conditions") or []
    return bool(taints & LOST_TAINTS) or any(c["type"] == "Ready" and c["status"] != "True" for c in conditions)
