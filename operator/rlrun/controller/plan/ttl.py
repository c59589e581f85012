"""When a finished run is deleted."""

from datetime import datetime

from rlrun.kube.conditions import seconds


def time_to_live(ttl_seconds: int | None, completion_time: datetime | None, now: datetime) -> float | None:
    """Seconds until the run is to be deleted, 0 or less when it is time; None when it stays."""
    if ttl_seconds is None or completion_time is None:
        return None
    return ttl_seconds - seconds(completion_time, now)
