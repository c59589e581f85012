"""Reader of the Events of pods that have a node and no container for some time. All other pods cost no request."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import EVENT
from rlrun.kube.objects import Obj

from rlrun_operator.planning.diagnosis.pod_startup import without_container_since
from rlrun_operator.planning.plan.observation import RunKey
from rlrun_operator.planning.plan.pod_event import PodEvent, newest_event

log = logging.getLogger(__name__)

FIRST_AFTER = timedelta(seconds=15)
"""Time without a container after which the Events of a pod are read. Most pods have one before."""
SHARE = 0.25
"""Share of the time without a container that passes between two reads for the same run."""


@dataclass
class _RunReads:
    at: datetime | None = None
    """Time of the newest read."""
    asked: dict[str, datetime] = field(default_factory=dict)
    """Times of the newest reads by uid of a pod."""
    events: dict[str, PodEvent] = field(default_factory=dict)


class PodEvents:
    """Newest Event of each pod that does not start.

    Of a run, one pod's Events are read at a time, until a decision rests on them.
    """

    def __init__(self, cluster: AsyncKubeClient) -> None:
        self._cluster = cluster
        self._reads: dict[RunKey, _RunReads] = {}

    async def read(
        self, key: RunKey, pods: Sequence[Obj], now: datetime | None, *, is_fresh: bool = False
    ) -> dict[str, PodEvent]:
        """Return the newest known Event of each of the run's `pods` that has had no container for some time, by uid.

        `now`: None asks for none. `is_fresh`: those of all pods whose Event is a warning are read now, as the run may
        fail for it. An API server that refuses the list leaves the Events as they are known. Raises ApiError if a fresh
        read may succeed later.
        """
        waiting = {pod["metadata"]["uid"]: since for pod in pods if (since := without_container_since(pod)) is not None}
        if not waiting:
            self.forget(key)
            return {}
        reads = self._reads.setdefault(key, _RunReads())
        reads.events = {uid: event for uid, event in reads.events.items() if uid in waiting}
        reads.asked = {uid: at for uid, at in reads.asked.items() if uid in waiting}
        if now is None:
            return dict(reads.events)
        warned = [uid for uid, event in reads.events.items() if event.warning] if is_fresh else []
        chosen = _choose_pod(waiting, reads, now)
        for uid in dict.fromkeys([*warned, chosen]):
            if uid is not None:
                reads.at = reads.asked[uid] = now
                await self._read(key, uid, reads, is_fresh=is_fresh)
        return dict(reads.events)

    def forget(self, key: RunKey) -> None:
        """Keep nothing about the run."""
        self._reads.pop(key, None)

    async def _read(self, key: RunKey, uid: str, reads: _RunReads, *, is_fresh: bool) -> None:
        try:
            found = await self._cluster.list(EVENT, key.namespace, fields=f"involvedObject.uid={uid}")
        except ApiError as error:
            if is_fresh and error.is_temporary:
                raise
            log.info("Could not read the Events of a pod of %s: %s", key, error)
            return
        event = newest_event(found)
        if event is not None:
            reads.events[uid] = event
        else:
            reads.events.pop(uid, None)


def _choose_pod(waiting: dict[str, datetime], reads: _RunReads, now: datetime) -> str | None:
    """Return the pod whose Events are to be read now: the one not read for longest. None: not yet."""
    uid = min(waiting, key=lambda uid: (reads.asked.get(uid, waiting[uid]), uid))
    waited = now - waiting[uid]
    pause = max(FIRST_AFTER, waited * SHARE)
    is_early = waited < FIRST_AFTER or (reads.at is not None and now - reads.at < pause)
    return None if is_early else uid
