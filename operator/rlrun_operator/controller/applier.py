"""Execution of a plan, in an order that is safe if the operator crashes between any two calls.

The applier writes the status once, after the actions that it reports, and only if it changed; Events follow a written
status. It writes a failure decision before deleting the pods that it was read from, because it could not be
reconstructed afterwards. Slow calls to S3 come after the status.
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

from rlrun_operator.controller.artifact_store import ArtifactStore
from rlrun_operator.controller.log_collector import LogCollector
from rlrun_operator.planning.diagnosis.refused_objects import name_taken, refused
from rlrun_operator.planning.plan.actions import ArtifactDeletion, ConfigRefresh, Plan
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.policies.artifacts import failed_deletion_status
from rlrun_operator.runtime.metrics import ERRORS, RUN_PHASES, STATUS_WRITES

log = logging.getLogger(__name__)

REMOVAL_SECONDS = 60.0
"""Time limit for the deletions of one reconcile; the next one continues."""


class Applier:
    """Executes the plans of runs."""

    def __init__(self, cluster: AsyncKubeClient, artifacts: ArtifactStore) -> None:
        self._cluster = cluster
        self._artifacts = artifacts
        self.logs = LogCollector(cluster, artifacts)

    async def apply(self, observation: RunObservation, plan: Plan) -> None:
        """Execute the plan. Raises ApiError or StoreError; earlier actions are not undone.

        Raises ObjectRefused for an object that cannot be written. The following objects are not written either, so
        that the run does not hold GPUs without its other parts.
        """
        cluster, namespace = self._cluster, observation.namespace
        if plan.add_finalizer:
            await self._set_finalizers(observation, [*_finalizers(observation.run), FINALIZER])
        await self.logs.collect(namespace, observation.s3_variables, plan.logs)
        if plan.status_first:
            await self.report(observation, plan)
        for ref in plan.deletes:
            await cluster.delete(ALL[ref.kind], namespace, ref.name, ref.uid, ref.resource_version)
        for obj in plan.applies:
            await self._write(observation, obj)
        for refresh in plan.refreshes:
            await self._refresh(namespace, refresh)
        for obj in plan.artifact_statuses:
            await cluster.apply_status(obj)
        if not plan.status_first:
            await self.report(observation, plan)
        await self._remove(observation, plan.removals)
        if plan.purge is not None:
            await self._artifacts.purge(observation.s3_variables, plan.purge)
        if plan.remove_finalizer:
            await self._set_finalizers(observation, [f for f in _finalizers(observation.run) if f != FINALIZER])
        if plan.delete_run:
            await cluster.delete(RLRUN, namespace, observation.name, observation.uid)

    async def _write(self, observation: RunObservation, obj: Obj) -> None:
        metadata = obj["metadata"]
        if not observation.has_object(obj["kind"], metadata["name"]):
            # Server-side apply would silently take over an object of another owner.
            existing = await self._cluster.get(ALL[obj["kind"]], metadata["namespace"], metadata["name"])
            taken = name_taken(obj, existing, observation) if existing is not None else None
            if taken is not None:
                raise taken
        try:
            await self._cluster.apply(obj)
        except ApiError as error:
            refusal = refused(obj, error)
            if refusal is None:
                raise
            raise refusal from error

    async def _refresh(self, namespace: str, refresh: ConfigRefresh) -> None:
        metadata = {"uid": refresh.uid, "annotations": {CONFIG_ANNOTATION: refresh.digest}}
        try:
            await self._cluster.patch(POD, namespace, refresh.pod, {"metadata": metadata})
        except ApiError as error:
            # The kubelet applies the change later anyway; a deleted pod (404, or 409 for the uid) does not need it.
            log.info(
                "Could not refresh the configuration of pod %s/%s; the kubelet updates it later: %s",
                namespace,
                refresh.pod,
                error,
            )

    async def report(self, observation: RunObservation, plan: Plan) -> None:
        """Write the status of the plan if it differs from the observed one, and its Events. Raises ApiError."""
        written = plan.status is not None and await self._write_status(observation, plan.status)
        if written or plan.status is None:
            for event in plan.events:
                await self._emit(observation.run, event)

    async def _remove(self, observation: RunObservation, removals: Sequence[ArtifactDeletion]) -> None:
        """Delete the files, then their object. An error of S3 is recorded in the object and retried."""
        started = time.monotonic()
        for removal in removals:
            if time.monotonic() - started > REMOVAL_SECONDS:
                return
            try:
                await self._artifacts.delete(observation.s3_variables, removal.uri)
            except StoreError as error:
                ERRORS.labels(error.reason).inc()
                log.warning(
                    "run %s/%s: could not delete %s; retrying: %s",
                    observation.namespace,
                    observation.name,
                    removal.uri,
                    error,
                )
                failed_status = failed_deletion_status(removal, error.problem, datetime.now(UTC))
                if failed_status is not None:
                    await self._cluster.apply_status(failed_status)
                continue
            ref = ObjectRef.of(removal.obj)
            await self._cluster.delete(ALL[ref.kind], observation.namespace, ref.name, ref.uid)

    async def _write_status(self, observation: RunObservation, status: RLRunStatus) -> bool:
        new = compact(status.to_json_dict())
        old = observation.run.get("status") or {}
        if new == compact(old):
            return False
        # The uid makes the API server reject the status if the run was deleted and created again.
        await self._cluster.apply_status(
            {
                "apiVersion": API_VERSION,
                "kind": "RLRun",
                "metadata": {"name": observation.name, "namespace": observation.namespace, "uid": observation.uid},
                "status": new,
            }
        )
        STATUS_WRITES.inc()
        if new.get("phase") != old.get("phase"):
            RUN_PHASES.labels(new.get("phase", "")).inc()
            log.info(
                "run %s/%s: %s -> %s",
                observation.namespace,
                observation.name,
                old.get("phase", "-"),
                new.get("phase", "-"),
            )
        return True

    async def _set_finalizers(self, observation: RunObservation, finalizers: list[str]) -> None:
        metadata = {"finalizers": finalizers, "resourceVersion": observation.run["metadata"]["resourceVersion"]}
        try:
            run = await self._cluster.patch(RLRUN, observation.namespace, observation.name, {"metadata": metadata})
        except ApiError as error:
            if error.status == 404:
                return
            raise
        observation.run["metadata"].update(
            finalizers=finalizers, resourceVersion=run["metadata"].get("resourceVersion", metadata["resourceVersion"])
        )

    async def _emit(self, run: Obj, event: EventRecord) -> None:
        try:
            await self._cluster.create(build_event(run, event, datetime.now(UTC)))
        except ApiError as error:
            # Events are informational; a run must not fail without one.
            log.warning("Could not write event %s of %s: %s", event.reason, run["metadata"]["name"], error)


def compact(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping without empty values, which the API server may drop."""
    return {key: v for key, v in value.items() if v is not None and v != [] and v != {}}


def _finalizers(run: Obj) -> list[str]:
    return list(run["metadata"].get("finalizers") or [])
