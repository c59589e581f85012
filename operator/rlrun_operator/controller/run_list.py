"""List of all runs, a page at a time.

A run takes 25 kB of memory once its JSON is decoded, and Python's garbage collection stops everything for 0.2 s when
10,000 of them are there. So only what a list needs of a finished run is kept.
"""

from collections.abc import Sequence

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.kinds import RLRUN
from rlrun.kube.objects import Obj

from rlrun_operator.planning.plan.stored_status import is_finished

KEPT = {
    "metadata": ("namespace", "name", "uid", "resourceVersion", "labels", "deletionTimestamp"),
    "spec": ("model", "ttlSecondsAfterFinished"),
    "status": ("phase", "completionTime"),
}
"""Fields of finished runs that their list has."""


async def list_runs(cluster: AsyncKubeClient, namespaces: Sequence[str]) -> list[Obj]:
    """Return the runs of these namespaces, of all without one; complete or not at all. Raises ApiError."""
    places: list[str | None] = [*namespaces] or [None]
    return [run for place in places for run in await cluster.list(RLRUN, place, keep=kept_parts)]


def kept_parts(run: Obj) -> Obj:
    """Return what a list needs of the run: all of it, unless it has ended and has no place in the queue."""
    if not is_finished(run) or run["status"].get("queue"):
        return run
    return {
        part: {key: run[part][key] for key in keys if key in run[part]} for part, keys in KEPT.items() if part in run
    }
