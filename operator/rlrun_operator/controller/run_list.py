"""List of all runs, a page at a time.

A run takes 25 kB of memory once its JSON is decoded, and Python's garbage collection stops everything for 0.2 s when
10,000 of them are there. So only what a list needs of a finished run is kept.
"""

from collections.abc import Sequence

from rlrun.kube import requests
from rlrun.kube.async_client import AsyncTransport
from rlrun.kube.kinds import RLRUN
from rlrun.kube.objects import Obj

from rlrun_operator.planning.plan.stored_status import is_finished

KEPT = {
    "metadata": ("namespace", "name", "uid", "resourceVersion", "labels", "deletionTimestamp"),
    "spec": ("model", "ttlSecondsAfterFinished"),
    "status": ("phase", "completionTime"),
}
"""Fields of finished runs that their list has."""


class RunList:
    """Reader of the runs of some namespaces, or of all."""

    def __init__(self, transport: AsyncTransport, namespaces: Sequence[str] = ()) -> None:
        self._transport = transport
        self._namespaces: list[str | None] = [*namespaces] or [None]

    async def read(self) -> list[Obj]:
        """Return all runs, complete or not at all. Raises ApiError."""
        found: list[Obj] = []
        for namespace in self._namespaces:
            token, is_last = "", False
            while not is_last:
                request = requests.list_page(RLRUN, namespace, None, token)
                items, token = requests.parse_page(request, await self._transport.send(request))
                found += map(kept_parts, items)
                is_last = not token
        return found


def kept_parts(run: Obj) -> Obj:
    """Return what a list needs of the run: all of it, unless it has ended and has no place in the queue."""
    if not is_finished(run) or run["status"].get("queue"):
        return run
    return {
        part: {key: run[part][key] for key in keys if key in run[part]} for part, keys in KEPT.items() if part in run
    }
