"""Executes a plan, in an order that is safe if the operator crashes between any two calls.

The applier writes the status after the actions that the status reports, and only if it has changed. Events follow the
status. A failure is written before the pods that show it are deleted, because it could not be reconstructed afterwards.
Slow calls to S3 come after the status.
"""

import functools
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from rlrun.api.base.field_errors import problems
from rlrun.api.base.phases import Phase
from rlrun.api.run_status import RLRunStatus
from rlrun.constants import API_VERSION, CONFIG_ANNOTATION, CONFLICT, FINALIZER
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.events import EventRecord
from rlrun.kube.kinds import ALL, POD, POD_CONTROLLERS, RLRUN
from rlrun.kube.objects import Obj, ObjectRef, precondition_of
from rlrun.kube.refusals import ObjectRefused, find_refusal, find_refused_deletion
from rlrun.storage.store import StoreError

from rlrun_operator.cluster.events import write_events
from rlrun_operator.controller.container_logs import LogCollector
from rlrun_operator.kueue.workload import QUEUE_LABEL
from rlrun_operator.kueue.workload_status import WorkloadStatus
from rlrun_operator.planning.actions import ArtifactDeletion, ConfigRefresh, Plan
from rlrun_operator.planning.artifacts import failed_deletion_status
from rlrun_operator.planning.observation import RunObservation
from rlrun_operator.planning.refusals import report_artifacts, report_children
from rlrun_operator.planning.status import transitions
from rlrun_operator.runtime.bounded_gather import bounded_gather
from rlrun_operator.runtime.metrics import ERRORS, RUN_PHASES, STATUS_WRITES, count_failure
from rlrun_operator.storage.artifact_store import ArtifactStore
from rlrun_operator.storage.usage_log import UsageLog, usage_records

log = logging.getLogger(__name__)

CREATIONS = 6
"""Maximum number of children that a reconcile creates concurrently."""
USAGE_RETRY_SECONDS = 60.0
"""Seconds until a failed write to the usage log is retried."""
REMOVAL_SECONDS = 60.0
"""Time limit in seconds for the deletions of one reconcile. The next reconcile continues."""


class Applier:
    """Executes the plans of runs."""

    def __init__(self, cluster: AsyncKubeClient, artifacts: ArtifactStore, usage: UsageLog | None = None) -> None:
        """If `usage` is None, usage is not recorded."""
        self._usage = usage
        self._cluster = cluster
        self._artifacts = artifacts
        self.logs = LogCollector(cluster, artifacts)

    async def apply(self, observation: RunObservation, plan: Plan, now: datetime) -> Plan:
        """Execute the plan. Returns the executed plan, whose status reports refused objects.

        Raises ApiError or StoreError; earlier actions are not undone. An error in writing the object of a checkpoint or
        adapter does not block decisions about the run itself, but artifacts, the run's files and the run itself
        are deleted only after all objects are written.
        """
        cluster, namespace = self._cluster, observation.namespace
        if plan.add_finalizer:
            await self._set_finalizers(observation, [*_finalizers(observation.run), FINALIZER])
        await self.logs.collect(namespace, observation.s3_variables, plan.logs)
        plan = await self._record_usage(observation, plan, now)
        error = await self._write_artifacts(observation, plan)
        plan = report_artifacts(plan, error, observation, now)
        if plan.status_first:
            await self.report(observation.run, plan.status, plan.events)
            plan = replace(plan, events=())
        if plan.suspend:
            # As a user's patch does: the next patch of anybody takes precedence, and a change since the run was read
            # refuses this one.
            await self._change_run(observation, spec={"suspend": True})
        refusal = await self._delete(observation, plan.deletes, now)
        plan = await self._write_children(observation, plan, refusal, now)
        await self.report(observation.run, plan.status, plan.events, is_done=bool(plan.deletes) and refusal is None)
        error = error or refusal
        if error is not None and not isinstance(error, ObjectRefused):
            raise error
        if error is None:
            await self._remove(observation, plan.removals, now)
            if plan.purge is not None:
                await self.logs.settle(plan.purge.root)
                await self._artifacts.purge(observation.s3_variables, plan.purge)
            # After the purge: a user may still decide to keep the files that it could not delete.
            if plan.tombstone is not None:
                tombstone = plan.tombstone
                content = tombstone.content.to_bytes()
                await self._artifacts.write_tombstone(observation.s3_variables, tombstone.uri, content)
        # A run whose files are kept does not wait for artifact objects.
        if plan.remove_finalizer and (error is None or plan.tombstone is None):
            await self._set_finalizers(observation, [f for f in _finalizers(observation.run) if f != FINALIZER])
        if plan.delete_run and error is None:
            version = observation.run["metadata"].get("resourceVersion")
            await cluster.delete(RLRUN, namespace, observation.name, observation.uid, version)
        return plan

    async def _record_usage(self, observation: RunObservation, plan: Plan, now: datetime) -> Plan:
        """Write ended attempts to the usage log. If S3 fails, the attempts stay in the status, and the write is retried
        later.
        """
        status = plan.status or observation.status
        records = usage_records(observation.run, status, now, is_leaving=plan.remove_finalizer)
        if self._usage is None or not records:
            return plan
        try:
            await self._usage.record(observation.s3_variables, records)
        except StoreError as error:
            log.warning(
                "Could not write usage records to S3; retrying: %s. Records: %s",
                error,
                [record.to_json_dict() for record in records],
            )
            times = (USAGE_RETRY_SECONDS, plan.requeue_after)
            return replace(plan, requeue_after=min(time for time in times if time is not None))
        if not status.ended_attempts:
            return plan
        return replace(plan, status=status.model_copy(update={"ended_attempts": []}))

    async def _write_artifacts(self, observation: RunObservation, plan: Plan) -> ApiError | None:
        """Write the objects of checkpoints and adapters, and their statuses if all objects exist. Returns the first
        error.
        """
        try:
            applied: dict[ObjectRef, Obj] = {}
            for obj in plan.artifact_applies:
                applied[ObjectRef.of(obj)] = await self._apply(observation, obj)
            for obj in plan.artifact_statuses:
                # An observed object keeps its version: one of its name may have been created since.
                ref = ObjectRef(obj["kind"], obj["metadata"]["name"])
                source = obj if "resourceVersion" in obj["metadata"] else applied.get(ref, obj)
                await self._cluster.apply_status({**obj, "metadata": precondition_of(source)})
        except ApiError as error:
            return error
        return None

    async def _delete(
        self, observation: RunObservation, refs: Sequence[ObjectRef], now: datetime
    ) -> ObjectRefused | None:
        """Delete the objects. Returns the first refusal, or None.

        Any other error is raised after the remaining deletions have been tried, or at once if all deletions would fail.
        Before raising, writes the first refusal to the run's status.
        """
        # A controller that has changed may have a pod that the plan does not know. Its event causes another reconcile.
        versions = {c["metadata"]["uid"]: c["metadata"].get("resourceVersion") for c in observation.pod_controllers()}
        namespace, refusals, failures = observation.namespace, list[ObjectRefused](), list[ApiError]()
        for ref in refs:
            if (refusals or failures) and ref.kind not in (POD.kind, *POD_CONTROLLERS):
                # Keep objects that pods need until no pod can be left.
                continue
            version = ref.resource_version or versions.get(ref.uid)
            try:
                await self._cluster.delete(ALL[ref.kind], namespace, ref.name, ref.uid, version, ref.grace_seconds)
            except ApiError as error:
                refusal = find_refused_deletion(ref.kind, namespace, ref.name, error)
                if refusal is not None:
                    _count_refusal(observation, refusal)
                    refusals.append(refusal)
                    continue
                failures.append(error)
                # A 500 may concern only this object, and is returned immediately.
                if error.is_temporary and error.status != 500:
                    break
        if failures:
            if refusals:
                known = Plan(status=RLRunStatus.parse(observation.run.get("status")))
                await self.report(observation.run, report_children(known, refusals[0], now).status)
            raise failures[0]
        return refusals[0] if refusals else None

    async def _write_children(
        self, observation: RunObservation, plan: Plan, refusal: ObjectRefused | None, now: datetime
    ) -> Plan:
        """Write the children until one is refused. Returns the plan, whose status reports `refusal` or, if that is
        None, the new refusal.
        """
        try:
            if plan.queue_label is not None:
                await self._change_run(observation, labels={QUEUE_LABEL: plan.queue_label})
            if plan.workload_status is not None:
                await self._write_workload_status(plan.workload_status)
            workloads = [obj for obj in plan.applies if obj["kind"] in POD_CONTROLLERS]
            # First write objects that pods need, such as NetworkPolicies, then the pods in order until one is refused.
            others = [obj for obj in plan.applies if obj["kind"] not in POD_CONTROLLERS]
            await bounded_gather(functools.partial(self._apply, observation), others, CREATIONS)
            for obj in workloads:
                await self._apply(observation, obj)
            for refresh in plan.refreshes:
                await self._refresh(observation.namespace, refresh)
        except ObjectRefused as error:
            refusal = refusal or error
        return report_children(plan, refusal, now)

    async def _write_workload_status(self, status: WorkloadStatus) -> None:
        """Write the status of the Workload. If the Workload has changed or was deleted, the next reconcile decides
        again.
        """
        try:
            await self._cluster.apply_status(status.obj, status.manager)
        except ApiError as error:
            if error.status == CONFLICT or error.is_object_missing:
                log.info(
                    "Workload %s has changed; its status update will be retried in the next reconcile",
                    status.obj["metadata"]["name"],
                )
                return
            refusal = find_refusal(status.obj, error)
            if refusal is None:
                raise
            raise refusal from error

    async def _apply(self, observation: RunObservation, obj: Obj) -> Obj:
        is_new = not observation.has_object(obj["kind"], obj["metadata"]["name"])
        try:
            return await self._cluster.apply_own(obj, is_new=is_new)
        except ObjectRefused as error:
            _count_refusal(observation, error)
            raise

    async def _refresh(self, namespace: str, refresh: ConfigRefresh) -> None:
        metadata = {"uid": refresh.uid, "annotations": {CONFIG_ANNOTATION: refresh.digest}}
        try:
            await self._cluster.patch(POD, namespace, refresh.pod, {"metadata": metadata})
        except ApiError as error:
            # The kubelet applies the change later anyway. A deleted pod (404, or 409 for the uid) does not need the
            # change.
            log.info(
                "Could not refresh the configuration of pod %s/%s; the kubelet updates it later: %s",
                namespace,
                refresh.pod,
                error,
            )

    async def report(
        self, run: Obj, status: RLRunStatus | None, events: Sequence[EventRecord] = (), *, is_done: bool = False
    ) -> None:
        """Write the run's status if it has changed, and then its Events. Raises ApiError.

        If `is_done`, Events are written even if the status has not changed, because they report completed actions.
        """
        before = RLRunStatus.parse(run.get("status"))
        if status is not None:
            if not await self._write_status(run, status) and not is_done:
                return
            events = (*transitions(before, status), *events)
        await write_events(self._cluster, run, events)

    async def _remove(self, observation: RunObservation, removals: Sequence[ArtifactDeletion], now: datetime) -> None:
        """Delete the files of each artifact, then its object. An S3 error is recorded in the object and retried."""
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
                failed_status = failed_deletion_status(removal, error.problem, now)
                if failed_status is not None:
                    await self._cluster.apply_status(failed_status)
                continue
            ref = ObjectRef.of(removal.obj)
            await self._cluster.delete(ALL[ref.kind], observation.namespace, ref.name, ref.uid)

    async def _write_status(self, run: Obj, status: RLRunStatus) -> bool:
        new = compact(status.to_json_dict())
        old = run.get("status") or {}
        if new == compact(old):
            return False
        metadata = run["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        _require_valid_status(f"{namespace}/{name}", new)
        # The version matters if this operator loses the Lease during the request.
        written = await self._cluster.apply_status(
            {
                "apiVersion": API_VERSION,
                "kind": "RLRun",
                "metadata": precondition_of(run),
                "status": new,
            }
        )
        run["status"] = new
        metadata["resourceVersion"] = written["metadata"].get("resourceVersion", metadata["resourceVersion"])
        STATUS_WRITES.inc()
        if new.get("phase") != old.get("phase"):
            RUN_PHASES.labels(new.get("phase", "")).inc()
            if new.get("phase") == Phase.failed:
                count_failure(new.get("reason", ""))
            log.info("run %s/%s: %s -> %s", namespace, name, old.get("phase", "-"), new.get("phase", "-"))
        return True

    async def _set_finalizers(self, observation: RunObservation, finalizers: list[str]) -> None:
        try:
            await self._change_run(observation, finalizers=finalizers)
        except ApiError as error:
            if error.status == 404:
                return
            raise
        observation.run["metadata"]["finalizers"] = finalizers

    async def _change_run(self, observation: RunObservation, spec: Obj | None = None, **changes: Any) -> None:
        """Change fields of the run's metadata and spec. Raises ApiError, with status 409 if the run has changed since
        it was read.
        """
        metadata = observation.run["metadata"]
        change: Obj = {"metadata": {**changes, "resourceVersion": metadata["resourceVersion"]}}
        if spec is not None:
            change["spec"] = spec
        run = await self._cluster.patch(RLRUN, observation.namespace, observation.name, change)
        metadata["resourceVersion"] = run["metadata"].get("resourceVersion", metadata["resourceVersion"])


def _count_refusal(observation: RunObservation, refusal: ObjectRefused) -> None:
    ERRORS.labels(refusal.reason).inc()
    log.info("run %s/%s: %s", observation.namespace, observation.name, refusal)


def _require_valid_status(run: str, status: Mapping[str, Any]) -> None:
    """Raise ApiError if the status does not match the schema, which the API server does not check."""
    try:
        RLRunStatus.model_validate(status, by_alias=True, by_name=False)
    except ValidationError as error:
        found = "; ".join(f"status.{one.path}: {one.message}" for one in problems(error, RLRunStatus))
        raise ApiError(422, "Invalid", found, action=f"write the status of RLRun {run}") from error


def compact(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping without empty values, which the API server may drop."""
    return {key: v for key, v in value.items() if v is not None and v != [] and v != {}}


def _finalizers(run: Obj) -> list[str]:
    return list(run["metadata"].get("finalizers") or [])
