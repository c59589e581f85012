"""Carrying out a plan, in an order in which a crash between any two calls does no harm.

The status is written once, after what it tells of, and only if it says something new; Events follow only a status that
was written. A verdict is written before the pods go that it was read from: nobody could find it out again. What may
take long or fail for S3's sake comes after the status, so that nothing else waits for that.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rlrun.api.run_status import RLRunStatus
from rlrun.constants import API_VERSION, CONFIG_ANNOTATION, FINALIZER
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.events import EventRecord, build_event
from rlrun.kube.kinds import ALL, POD, RLRUN
from rlrun.kube.objects import Obj, ObjectRef
from rlrun.storage.store import StoreError

from rlrun_operator.controller.artifact_store import Artifacts
from rlrun_operator.controller.log_collector import LogKeeper
from rlrun_operator.planning.plan.actions import ArtifactDeletion, ConfigRefresh, Plan
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.policies.artifacts import failed_removal
from rlrun_operator.runtime.metrics import ERRORS, RUN_PHASES, STATUS_WRITES

log = logging.getLogger(__name__)

REMOVAL_SECONDS = 60.0
"""For all that retention removes in one round; what is left of it has its turn in the next one."""


class Applier:
    """Carries out plans."""

    def __init__(self, cluster: AsyncKubeClient, artifacts: Artifacts) -> None:
        self._cluster = cluster
        self._artifacts = artifacts
        self.logs = LogKeeper(cluster, artifacts)

    async def apply(self, seen: RunObservation, plan: Plan) -> None:
        """Does everything in the plan. Raises ApiError or StoreError; what was done until then stays done."""
        cluster, namespace = self._cluster, seen.namespace
        if plan.add_finalizer:
            await self._set_finalizers(seen, [*_finalizers(seen.run), FINALIZER])
        await self.logs.keep(namespace, seen.s3_variables, plan.logs)
        if plan.status_first:
            await self._tell(seen, plan)
        for ref in plan.deletes:
            await cluster.delete(ALL[ref.kind], namespace, ref.name, ref.uid)
        for obj in plan.applies:
            await cluster.apply(obj)
        for refresh in plan.refreshes:
            await self._refresh(namespace, refresh)
        for obj in plan.artifact_statuses:
            await cluster.apply_status(obj)
        if not plan.status_first:
            await self._tell(seen, plan)
        await self._remove(seen, plan.removals)
        if plan.purge is not None:
            await self._artifacts.purge(seen.s3_variables, plan.purge)
        if plan.remove_finalizer:
            await self._set_finalizers(seen, [f for f in _finalizers(seen.run) if f != FINALIZER])
        if plan.delete_run:
            await cluster.delete(RLRUN, namespace, seen.name, seen.uid)

    async def _refresh(self, namespace: str, refresh: ConfigRefresh) -> None:
        metadata = {"uid": refresh.uid, "annotations": {CONFIG_ANNOTATION: refresh.digest}}
        try:
            await self._cluster.patch(POD, namespace, refresh.pod, {"metadata": metadata})
        except ApiError as error:
            # The change comes by itself, only later; and a pod that is gone (404, or 409 for the uid) needs none.
            log.info("pod %s/%s is not told of its changed configuration: %s", namespace, refresh.pod, error)

    async def _tell(self, seen: RunObservation, plan: Plan) -> None:
        written = plan.status is not None and await self._write_status(seen, plan.status)
        if written or plan.status is None:
            for note in plan.events:
                await self._emit(seen.run, note)

    async def _remove(self, seen: RunObservation, removals: Sequence[ArtifactDeletion]) -> None:
        """The files, then the object that remembers them. What S3 refuses is noted there and tried again."""
        started = time.monotonic()
        for removal in removals:
            if time.monotonic() - started > REMOVAL_SECONDS:
                return
            try:
                await self._artifacts.delete(seen.s3_variables, removal.uri)
            except StoreError as error:
                ERRORS.labels(error.reason).inc()
                log.warning("run %s/%s: %s is not deleted: %s", seen.namespace, seen.name, removal.uri, error)
                told = failed_removal(removal, error.problem, datetime.now(UTC))
                if told is not None:
                    await self._cluster.apply_status(told)
                continue
            ref = ObjectRef.of(removal.obj)
            await self._cluster.delete(ALL[ref.kind], seen.namespace, ref.name, ref.uid)

    async def _write_status(self, seen: RunObservation, status: RLRunStatus) -> bool:
        new = compact(status.to_json_dict())
        old = seen.run.get("status") or {}
        if new == compact(old):
            return False
        # The uid makes the API server refuse the status of a run that was deleted and made anew in the meantime.
        await self._cluster.apply_status(
            {
                "apiVersion": API_VERSION,
                "kind": "RLRun",
                "metadata": {"name": seen.name, "namespace": seen.namespace, "uid": seen.uid},
                "status": new,
            }
        )
        STATUS_WRITES.inc()
        if new.get("phase") != old.get("phase"):
            RUN_PHASES.labels(new.get("phase", "")).inc()
            log.info("run %s/%s: %s -> %s", seen.namespace, seen.name, old.get("phase", "-"), new.get("phase", "-"))
        return True

    async def _set_finalizers(self, seen: RunObservation, finalizers: list[str]) -> None:
        metadata = {"finalizers": finalizers, "resourceVersion": seen.run["metadata"]["resourceVersion"]}
        try:
            run = await self._cluster.patch(RLRUN, seen.namespace, seen.name, {"metadata": metadata})
        except ApiError as error:
            if error.status == 404:
                return
            raise
        seen.run["metadata"].update(
            finalizers=finalizers, resourceVersion=run["metadata"].get("resourceVersion", metadata["resourceVersion"])
        )

    async def _emit(self, run: Obj, note: EventRecord) -> None:
        try:
            await self._cluster.create(build_event(run, note, datetime.now(UTC)))
        except ApiError as error:
            # Events are for people; no run fails for want of one.
            log.warning("event %s of %s not written: %s", note.reason, run["metadata"]["name"], error)


def compact(value: Mapping[str, Any]) -> dict[str, Any]:
    """Without empty lists and tables at the top, which the API server may or may not keep."""
    return {k_: v for k_, v in value.items() if v is not None and v != [] and v != {}}


def _finalizers(run: Obj) -> list[str]:
    return list(run["metadata"].get("finalizers") or [])
