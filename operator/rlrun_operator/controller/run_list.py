"""List of all runs, a page at a time.

A run takes 25 kB of memory once its JSON is decoded, and Python's garbage collection stops everything for 0.2 s when
10,000 of them are there. So only what the readers of the list need is kept.
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
"""Fields of a run that the list has."""


async def list_runs(cluster: AsyncKubeClient, namespaces: Sequence[str], *, for_admission: bool = False) -> list[Obj]:
    """Return KEPT of the runs of these namespaces, of all without one; complete or not at all. Raises ApiError.

    `for_admission`: all fields of runs that may have a place in the queue or wait for one.
    """
    places: list[str | None] = [*namespaces] or [None]
    keep = _kept_for_admission if for_admission else _trim
    return [run for place in places for run in await cluster.list(RLRUN, place, keep=keep)]


def _kept_for_admission(run: Obj) -> Obj:
    return _trim(run) if is_finished(run) and not run["status"].get("queue") else run


def _trim(run: Obj) -> Obj:
    return {
        part: {key: run[part][key] for key in keys if key in run[part]} for part, keys in KEPT.items() if part in run
    }
