"""Reader of the Events of pods without a container, and of Jobs without their pods. All others cost no request.

One waits since this process saw it first, or since an earlier time that the cluster names: with a clock that differs
from the cluster's, Events are read earlier, and never later.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.conditions import parse_time
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import EVENT
from rlrun.kube.objects import Obj, attempt_of, true_condition
from rlrun.kube.pods import is_alive, is_leaving, role_of

from rlrun_operator.planning.diagnosis.pod_startup import without_container_since
from rlrun_operator.planning.plan.observation import RunKey
from rlrun_operator.planning.plan.pod_event import PodEvent, newest_event

log = logging.getLogger(__name__)

FIRST_AFTER = timedelta(seconds=15)
"""Time without a container after which the Events of a pod are read. Most pods have one before."""
JOB_AFTER = timedelta(seconds=3)
"""The same for a Job without its pods, which the API server may refuse."""
JOB_PAUSE = timedelta(seconds=30)
"""Longest time between two reads for a Job, which may have lost its pods long after its creation."""
SHARE = 0.25
"""Share of the time without a container that passes between two reads for the same run."""

ENDED = ("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget")
"""Conditions of a Job that creates no more pods."""


@dataclass
class _RunReads:
    at: datetime | None = None
    """Time of the newest read."""
    waiting: dict[str, datetime] = field(default_factory=dict)
    """Times at which a pod or a Job was first seen to wait, by uid."""
    asked: dict[str, datetime] = field(default_factory=dict)
    """Times of the newest reads by uid of a pod."""
    events: dict[str, PodEvent] = field(default_factory=dict)


class PodEvents:
    """Newest Event of each pod that does not start, and of each Job whose pods are missing.

    Of a run, one pod's Events are read at a time, until a decision rests on them.
    """

    def __init__(self, cluster: AsyncKubeClient) -> None:
        self._cluster = cluster
        self._reads: dict[RunKey, _RunReads] = {}

    async def read(
        self,
        key: RunKey,
        pods: Sequence[Obj],
        now: datetime | None,
        *,
        jobs: Sequence[Obj] = (),
        is_fresh: bool = False,
    ) -> dict[str, PodEvent]:
        """Return the newest known Event of each waiting pod and of each Job that lacks pods, by uid.

        `now`: None asks for none. `is_fresh`: those of all pods whose Event is a warning are read now, as the run may
        fail for it. An API server that refuses the list leaves the Events as they are known. Raises ApiError if a fresh
        read may succeed later.
        """
        lacking = {job["metadata"]["uid"]: _creation_of(job) for job in jobs if lacks_pods(job, pods)}
        begun = {pod["metadata"]["uid"]: since for pod in pods if (since := without_container_since(pod)) is not None}
        uids = begun.keys() | lacking.keys()
        if not uids:
            self.forget(key)
            return {}
        reads = self._reads.setdefault(key, _RunReads())
        waiting = reads.waiting = {uid: at for uid, at in reads.waiting.items() if uid in uids}
        if now is not None:
            waiting |= {uid: min(now, begun.get(uid) or lacking.get(uid) or now) for uid in uids if uid not in waiting}
        reads.events = {uid: event for uid, event in reads.events.items() if uid in waiting}
        reads.asked = {uid: at for uid, at in reads.asked.items() if uid in waiting}
        if now is None:
            return dict(reads.events)
        warned = [uid for uid, event in reads.events.items() if event.warning] if is_fresh else []
        chosen = _choose(waiting, lacking, reads, now)
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


def lacks_pods(job: Obj, pods: Sequence[Obj]) -> bool:
    """Return whether the Job should have more pods than it has. Its status does not say why."""
    spec, status = job["spec"], job.get("status") or {}
    if not pods and not status.get("startTime"):
        return False  # The controllers have not begun.
    if is_leaving(job) or spec.get("suspend") or true_condition(job, *ENDED) is not None:
        return False
    own = [p for p in pods if role_of(p) == role_of(job) and attempt_of(p) == attempt_of(job)]
    return sum(map(is_alive, own)) < int(spec.get("parallelism", 1))


def _creation_of(obj: Obj) -> datetime | None:
    return parse_time(obj["metadata"].get("creationTimestamp"))


def _choose(waiting: Mapping[str, datetime], lacking: Collection[str], reads: _RunReads, now: datetime) -> str | None:
    """Return whose Events are to be read now: that not read for longest, a Job before pods. None: not yet."""
    uid = min(
        waiting, key=lambda uid: (uid in reads.asked or uid not in lacking, reads.asked.get(uid, waiting[uid]), uid)
    )
    first_after = JOB_AFTER if uid in lacking else FIRST_AFTER
    waited = now - waiting[uid]
    longest = JOB_PAUSE if uid in lacking else waited
    pause = max(first_after, min(waited * SHARE, longest))
    is_early = waited < first_after or (reads.at is not None and now - reads.at < pause)
    return None if is_early else uid
