"""Reads the Events of pods that have no container yet, and of Jobs that lack pods. Sends no other requests.

A pod counts as waiting from the time at which this process first saw the pod, or from an earlier time in the pod's
status. If the clocks of operator and cluster differ, Events may therefore be read earlier, but never later.
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
from rlrun.kube.pods import Pod, is_leaving, role_of

from rlrun_operator.planning.observation import PodEvent, RunKey, newest_event
from rlrun_operator.planning.pod_starts import without_container_since

log = logging.getLogger(__name__)

FIRST_AFTER = timedelta(seconds=15)
"""Time without a container after which the Events of a pod are read. Most pods have a container by then."""
JOB_AFTER = timedelta(seconds=3)
"""Time without pods after which the Events of a Job are read, because the API server may refuse its pods."""
JOB_PAUSE = timedelta(seconds=30)
"""Maximum time between two reads for a Job, because a Job may lose its pods long after its creation."""
SHARE = 0.25
"""Pause between two reads for the same run, as a fraction of the time for which the pod or Job has been waiting."""

ENDED = ("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget")
"""Conditions of a Job that no longer creates pods."""


@dataclass
class _RunReads:
    at: datetime | None = None
    """Time of the latest read."""
    waiting: dict[str, datetime] = field(default_factory=dict)
    """Times at which a pod or a Job was first seen to wait, by uid."""
    asked: dict[str, datetime] = field(default_factory=dict)
    """Times of the latest reads, by uid of the pod or Job."""
    events: dict[str, PodEvent] = field(default_factory=dict)


class PodEvents:
    """Reads the newest Event of each pod that does not start, and of each Job whose pods are missing.

    Reads the Events of one pod per run at a time, except before decisions.
    """

    def __init__(self, cluster: AsyncKubeClient) -> None:
        self._cluster = cluster
        self._reads: dict[RunKey, _RunReads] = {}

    async def read(
        self,
        key: RunKey,
        pods: Sequence[Pod],
        now: datetime | None,
        *,
        jobs: Sequence[Obj] = (),
        is_fresh: bool = False,
    ) -> dict[str, PodEvent]:
        """Return the newest known Event of each waiting pod and of each Job that lacks pods, by uid.

        If `now` is None, no Events are read. If `is_fresh`, the Events of all pods whose last Event is a warning are
        read, because such an Event may make the run fail. If a read fails, the Events that are known already are
        returned, but a temporary error of a fresh read is raised as ApiError.
        """
        lacking = {job["metadata"]["uid"]: _creation_of(job) for job in jobs if lacks_pods(job, pods)}
        begun = {pod.uid: since for pod in pods if (since := without_container_since(pod)) is not None}
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
        """Drop all cached data about the run."""
        self._reads.pop(key, None)

    async def _read(self, key: RunKey, uid: str, reads: _RunReads, *, is_fresh: bool) -> None:
        try:
            found = await self._cluster.list(EVENT, key.namespace, fields=f"involvedObject.uid={uid}")
        except ApiError as error:
            if is_fresh and error.is_temporary:
                raise
            log.info("Could not read the Events of a pod or Job of %s: %s", key, error)
            return
        event = newest_event(found)
        if event is not None:
            reads.events[uid] = event
        else:
            reads.events.pop(uid, None)


def lacks_pods(job: Obj, pods: Sequence[Pod]) -> bool:
    """Return whether the Job has fewer pods than it should. The Job's status does not show the cause."""
    spec, status = job["spec"], job.get("status") or {}
    if not pods and not status.get("startTime"):
        return False  # The Job controller has not processed the Job yet.
    if is_leaving(job) or spec.get("suspend") or true_condition(job, *ENDED) is not None:
        return False
    alive = [p for p in pods if p.is_alive and p.role == role_of(job) and p.attempt == attempt_of(job)]
    return len(alive) < int(spec.get("parallelism", 1))


def _creation_of(obj: Obj) -> datetime | None:
    return parse_time(obj["metadata"].get("creationTimestamp"))


def _choose(waiting: Mapping[str, datetime], lacking: Collection[str], reads: _RunReads, now: datetime) -> str | None:
    """Return the uid of the object whose Events are read next, or None if no read is due.

    Jobs come before pods, and the least recently read comes first."""
    uid = min(
        waiting, key=lambda uid: (uid in reads.asked or uid not in lacking, reads.asked.get(uid, waiting[uid]), uid)
    )
    first_after = JOB_AFTER if uid in lacking else FIRST_AFTER
    waited = now - waiting[uid]
    longest = JOB_PAUSE if uid in lacking else waited
    pause = max(first_after, min(waited * SHARE, longest))
    is_early = waited < first_after or (reads.at is not None and now - reads.at < pause)
    return None if is_early else uid
