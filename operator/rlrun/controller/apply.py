"""Carrying out a plan, in an order in which a crash between any two calls does no harm.

The status is written last, once, and only if it says something new; Events follow only a status that was written.
"""

import hashlib
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rlrun.controller import cluster as k
from rlrun.controller.artifacts import Artifacts
from rlrun.controller.metrics import RUN_PHASES, STATUS_WRITES
from rlrun.controller.observed import Note, Obj, Observed, Plan
from rlrun.resources.naming import API_VERSION, FIELD_MANAGER, FINALIZER
from rlrun.schema.run_status import RLRunStatus

log = logging.getLogger(__name__)

EVENT_MESSAGE_LIMIT = 1000


class Applier:
    """Carries out plans."""

    def __init__(self, cluster: k.Cluster, artifacts: Artifacts) -> None:
        self._cluster = cluster
        self._artifacts = artifacts

    async def apply(self, seen: Observed, plan: Plan) -> None:
        """Does everything in the plan. Raises ApiError or StoreError; what was done until then stays done."""
        cluster, namespace = self._cluster, seen.namespace
        if plan.add_finalizer:
            await self._set_finalizers(seen, [*_finalizers(seen.run), FINALIZER])
        for uri in plan.s3_deletes:
            await self._artifacts.delete(seen.s3_variables, uri)
        for ref in plan.deletes:
            await cluster.delete(k.KINDS[ref.kind], namespace, ref.name, ref.uid)
        for obj in plan.applies:
            await cluster.apply(obj)
        for obj in plan.artifact_statuses:
            await cluster.apply_status(obj)
        if plan.purge is not None:
            await self._artifacts.purge(seen.s3_variables, plan.purge)
        written = plan.status is not None and await self._write_status(seen, plan.status)
        if written or plan.status is None:
            for note in plan.events:
                await self._emit(seen.run, note)
        if plan.remove_finalizer:
            await self._set_finalizers(seen, [f for f in _finalizers(seen.run) if f != FINALIZER])
        if plan.delete_run:
            await cluster.delete(k.RLRUN, namespace, seen.name, seen.uid)

    async def _write_status(self, seen: Observed, status: RLRunStatus) -> bool:
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

    async def _set_finalizers(self, seen: Observed, finalizers: list[str]) -> None:
        metadata = {"finalizers": finalizers, "resourceVersion": seen.run["metadata"]["resourceVersion"]}
        try:
            run = await self._cluster.merge(k.RLRUN, seen.namespace, seen.name, {"metadata": metadata})
        except k.ApiError as error:
            if error.status == 404:
                return
            raise
        seen.run["metadata"].update(
            finalizers=finalizers, resourceVersion=run["metadata"].get("resourceVersion", metadata["resourceVersion"])
        )

    async def _emit(self, run: Obj, note: Note) -> None:
        try:
            await self._cluster.create(event(run, note, datetime.now(UTC)))
        except k.ApiError as error:
            # Events are for people; no run fails for want of one.
            log.warning("event %s of %s not written: %s", note.reason, run["metadata"]["name"], error)


def compact(value: Mapping[str, Any]) -> dict[str, Any]:
    """Without empty lists and tables at the top, which the API server may or may not keep."""
    return {k_: v for k_, v in value.items() if v is not None and v != [] and v != {}}


def event(run: Obj, note: Note, now: datetime) -> Obj:
    """The Event object of a note."""
    metadata = run["metadata"]
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = hashlib.sha256(f"{metadata['uid']}{note.reason}{note.message}{now.isoformat()}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{digest}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": "RLRun",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion"),
        },
        "reason": note.reason,
        "message": note.message[:EVENT_MESSAGE_LIMIT],
        "type": "Warning" if note.warning else "Normal",
        "source": {"component": FIELD_MANAGER},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


def _finalizers(run: Obj) -> list[str]:
    return list(run["metadata"].get("finalizers") or [])
