"""Reader of the nodes of evicted pods. A pod does not tell which taint evicts it, so its node is read."""

import logging
from collections.abc import Callable, Iterable

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import NODE
from rlrun.kube.objects import Obj
from rlrun.kube.pods import is_alive, is_evicted_by_taint, is_leaving, node_of

from rlrun_operator.planning.diagnosis.node_state import is_lost

log = logging.getLogger(__name__)

KEPT_SECONDS = 5.0
"""Time for which the state of a node is used for all runs with pods on it."""


class NodeStates:
    """States of nodes, each read at most once in KEPT_SECONDS, or before a decision. None is read for other pods."""

    def __init__(self, cluster: AsyncKubeClient, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._known: dict[str, tuple[float, bool]] = {}
        """Times of the reads, in their order, and whether the node was lost, by name."""

    async def find_lost(self, pods: Iterable[Obj], *, is_fresh: bool = False) -> frozenset[str]:
        """Return the lost nodes of those of the pods that a taint evicts. `is_fresh`: as they are now."""
        evicted = {node_of(pod) for pod in pods if is_evicted_by_taint(pod) and is_leaving(pod) and is_alive(pod)}
        return frozenset([name for name in sorted(evicted - {""}) if await self._is_lost(name, is_fresh=is_fresh)])

    async def _is_lost(self, name: str, *, is_fresh: bool) -> bool:
        while self._known and self._clock() - self._known[first := next(iter(self._known))][0] >= KEPT_SECONDS:
            del self._known[first]
        if is_fresh or name not in self._known:
            try:
                found = is_lost(await self._cluster.get(NODE, None, name))
            except ApiError as error:
                log.warning("Could not read node %s; its kubelet must end the pods that are evicted: %s", name, error)
                found = False
            self._known.pop(name, None)
            self._known[name] = self._clock(), found
        return self._known[name][1]
