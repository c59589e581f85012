"""When is a run without work for its pods really at rest? When they are gone and S3 was looked at after that.

Pods that are told to end write a last checkpoint within their grace period. The look at S3 comes after the look at the
pods, so one look that finds no living pod has all that they have written.
"""

from datetime import datetime, timedelta

from rlrun.constants import RUN_UID_LABEL
from rlrun.kube.conditions import parse_time, seconds
from rlrun.kube.objects import Obj, label
from rlrun.kube.pods import is_alive

from rlrun_operator.planning.plan.observation import RunObservation

MARGIN = timedelta(seconds=60)
"""Beyond a pod's grace period: its node may be gone, and then nobody ever confirms its end."""
AWAY_SECONDS = 30.0
"""Between two looks at an S3 that does not answer."""


def requeue_after_finish(seen: RunObservation, now: datetime, soon: float) -> float | None:
    """Seconds until the next look at a run that has no work; None when all is seen."""
    if any(_may_write(pod, now) for pod in seen.pods if label(pod, RUN_UID_LABEL) == seen.uid):
        return soon
    return AWAY_SECONDS if seen.artifacts_problem is not None else None


def _may_write(pod: Obj, now: datetime) -> bool:
    # Kubernetes sets the time to that of the deletion plus the grace period.
    ends = parse_time(pod["metadata"].get("deletionTimestamp"))
    return is_alive(pod) and (ends is None or now < ends + MARGIN)


def time_to_live(ttl_seconds: int | None, completion_time: datetime | None, now: datetime) -> float | None:
    """Seconds until the run is to be deleted, 0 or less when it is time; None when it stays."""
    if ttl_seconds is None or completion_time is None:
        return None
    return ttl_seconds - seconds(completion_time, now)
