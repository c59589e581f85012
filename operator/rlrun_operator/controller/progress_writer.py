"""Writes the progress of runs, so that a step costs one patch of the status instead of a reconcile."""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime

from rlrun.constants import CONFLICT
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import RLRUN
from rlrun.kube.objects import Obj

from rlrun_operator.cluster.runs import RunObjects
from rlrun_operator.controller.orchestrator_client import OrchestratorClient
from rlrun_operator.planning.observation import RunKey
from rlrun_operator.planning.plan_run import plan_progress
from rlrun_operator.planning.status import to_clock
from rlrun_operator.runtime.metrics import STATUS_WRITES

log = logging.getLogger(__name__)

AT_ONCE = 0.0
"""Seconds until the reconcile of a run if more than its progress has changed."""


class ProgressWriter:
    """Writes the progress of runs; each call to `write` handles one run."""

    def __init__(self, objects: RunObjects, poller: OrchestratorClient, clock: Callable[[], datetime]) -> None:
        self._objects = objects
        self._poller = poller
        self._clock = clock

    async def write(self, key: RunKey) -> float | None:
        """Write the orchestrator's report to the run's status. Returns AT_ONCE if a reconcile is needed, otherwise
        None. Raises ApiError.

        The operator has no concurrent writes to the run, because the work queue gives a key to one worker at a time.
        The patch contains the version that was read, so it fails if a user has changed the run since. In that case a
        reconcile is needed.
        """
        run = await self._objects.get(RLRUN, key.namespace, key.name)
        report = self._poller.known_report(key)
        status = None if run is None or report is None else plan_progress(run, report, to_clock(self._clock()))
        if run is None or status is None:
            return AT_ONCE
        old = run["status"]
        new = {"progress": status.progress, "groups": status.groups}
        parts = {
            name: difference(old.get(name) or {}, part.to_json_dict()) for name, part in new.items() if part is not None
        }
        changes = {name: part for name, part in parts.items() if part}
        if not changes:
            return None
        metadata = {"resourceVersion": run["metadata"]["resourceVersion"]}
        try:
            await self._objects.cluster.patch_status(
                RLRUN, key.namespace, key.name, {"metadata": metadata, "status": changes}
            )
        except ApiError as error:
            if error.status == CONFLICT or error.is_object_missing:
                log.info("%s has changed; a reconcile will write its progress", key)
                return AT_ONCE
            raise
        STATUS_WRITES.inc()
        return None


def difference(old: Mapping[str, object], new: Mapping[str, object]) -> Obj:
    """Return the merge patch that turns `old` into `new`. Neither may contain nested maps. Fields that are missing in
    `new` become None.
    """
    return {key: new.get(key) for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)}
