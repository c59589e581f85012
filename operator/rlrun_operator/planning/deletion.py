"""Deletion of an RLRun object.

Kubernetes deletes the children by their owner references. While the run's finalizer delays the deletion, the operator
writes the run's tombstone to the bucket. Garbage collection keeps the files of runs without a tombstone. If
artifactPolicy is Delete, the operator first deletes the files in S3. It waits until the pods have terminated and the
trainer of the run's shared pool has closed its session, because they could write again. Both steps have a deadline, so
that an unreachable S3 does not block the deletion of a namespace. SKIP_DELETION_ANNOTATION skips both steps. If no
tombstone was written, garbage collection keeps the remaining files.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from rlrun.api.run_sections.retention import ArtifactPolicy
from rlrun.api.run_status import RLRunStatus
from rlrun.constants import FINALIZER, SKIP_DELETION_ANNOTATION, Reason
from rlrun.garbage_collection.tombstones import RunTombstone, run_tombstone
from rlrun.kube.conditions import parse_time, seconds
from rlrun.kube.events import EventRecord
from rlrun.kube.objects import Obj, ObjectRef, annotation
from rlrun.protocol.problem import Problem
from rlrun.storage.layout import S3Uri

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.actions import Plan, RunFilesDeletion, StatusChange, TombstoneWrite
from rlrun_operator.planning.artifacts import without_owner
from rlrun_operator.planning.children import active_workloads
from rlrun_operator.planning.observation import RunObservation
from rlrun_operator.planning.status import apply_change, reason_fields
from rlrun_operator.resources.platform import run_layout

RETRY_SECONDS = 2.0
RECORD_SECONDS = 60.0
"""Maximum seconds for which a deletion waits for the tombstone if the run's files are kept."""
REPORTED_SECONDS = 5.0
"""Seconds of waiting for the tombstone after which the status reports the wait."""


def plan_deletion(observation: RunObservation, settings: OperatorSettings, now: datetime) -> Plan:
    """Return the plan for a run with a deletionTimestamp."""
    metadata = observation.run["metadata"]
    if FINALIZER not in (metadata.get("finalizers") or []):
        return Plan()
    root = run_layout(settings, observation.namespace, observation.uid).root
    if (observation.run.get("spec") or {}).get("artifactPolicy") != ArtifactPolicy.delete:
        return _plan_record(observation, settings, now, root)
    kept_objects = observation.catalog.objects_in_use
    plan = _plan_files(observation, settings, now, root, kept_objects)
    return replace(plan, artifact_applies=_without_owners(kept_objects))


def _plan_record(observation: RunObservation, settings: OperatorSettings, now: datetime, root: S3Uri) -> Plan:
    if observation.status.start_time is None:
        return Plan(remove_finalizer=True)  # The run has no files.
    if annotation(observation.run, SKIP_DELETION_ANNOTATION) == "true":
        return Plan(remove_finalizer=True)
    waited = seconds(parse_time(observation.run["metadata"]["deletionTimestamp"]), now)
    limit = min(RECORD_SECONDS, settings.artifact_deletion_seconds)
    if waited >= limit:
        return _release(observation, f"The deletion could not be recorded in the bucket within {limit:.0f} s.")
    message = (
        f"Recording the deletion in the bucket, so that garbage collection can remove the files. The operator stops "
        f"trying after {limit:.0f} s. No action needed."
    )
    status = _status(observation, message, now) if waited >= REPORTED_SECONDS else None
    tombstone = _tombstone(observation, settings, RunTombstone(artifact_policy=ArtifactPolicy.retain))
    return Plan(
        # If the policy was Delete until recently, the run still owns these objects, and Kubernetes would delete them.
        artifact_applies=_without_owners(observation.catalog.objects),
        tombstone=tombstone,
        status=status,
        remove_finalizer=True,
        requeue_after=RETRY_SECONDS,
    )


def _without_owners(objects: Iterable[Obj]) -> tuple[Obj, ...]:
    return tuple(without_owner(obj) for obj in objects if obj["metadata"].get("ownerReferences"))


def _tombstone(observation: RunObservation, settings: OperatorSettings, content: RunTombstone) -> TombstoneWrite:
    root = S3Uri(settings.s3.bucket, settings.s3.prefix.strip("/"))
    return TombstoneWrite(str(run_tombstone(root, observation.namespace, observation.uid)), content)


def _plan_files(
    observation: RunObservation, settings: OperatorSettings, now: datetime, root: S3Uri, kept_objects: Sequence[Obj]
) -> Plan:
    if annotation(observation.run, SKIP_DELETION_ANNOTATION) == "true":
        return _release(observation, f"The files at {root} were not deleted (annotation {SKIP_DELETION_ANNOTATION}).")
    waited = seconds(parse_time(observation.run["metadata"]["deletionTimestamp"]), now)
    if waited >= settings.artifact_deletion_seconds:
        limit = f"{settings.artifact_deletion_seconds:.0f} s"
        return _release(observation, f"The files at {root} could not be deleted within {limit}.")
    if (problem := observation.tenancy_problem) is not None:
        # The run's pods may still write, and the operator cannot terminate them.
        status = apply_change(observation.new_status(), StatusChange(fields=reason_fields(problem)), now)
        return Plan(status=status, requeue_after=RETRY_SECONDS)
    message = (
        f"Deleting the files at {root} (`spec.artifactPolicy` Delete). The operator stops trying after "
        f"{settings.artifact_deletion_seconds:.0f} s. To delete the run now and keep its files: `kubectl annotate "
        f"rlrun {observation.name} -n {observation.namespace} {SKIP_DELETION_ANNOTATION}=true`."
    )
    status = _status(observation, message, now)
    deletes = tuple(active_workloads(observation))
    # Terminated pods count as well: their logs are copied to S3, which must not happen after the deletion of the files.
    pods = [p for p in observation.pods if p.is_alive or p.run_uid == observation.uid]
    if deletes or pods or observation.is_trainer_writing or not observation.catalog.has_references:
        return Plan(deletes=deletes, status=status, requeue_after=RETRY_SECONDS)
    kept = tuple(o["spec"]["uri"] for o in kept_objects)
    # Delete objects before files: no object may be Ready while its files are partly deleted.
    deletes = tuple(ObjectRef.of(o) for o in observation.catalog.objects if o["spec"]["uri"] not in kept)
    # Release the quota: deleting the files may take long.
    deletes += tuple(ObjectRef.of(w) for w in (observation.kueue.workloads if observation.kueue else ()))
    retained = sorted(uri.removeprefix(f"{root}/") for uri in kept)
    content = RunTombstone(artifact_policy=ArtifactPolicy.delete, retained=retained)
    return Plan(
        deletes=deletes,
        status=status,
        tombstone=_tombstone(observation, settings, content),
        purge=RunFilesDeletion(str(root), kept),
        remove_finalizer=True,
        requeue_after=RETRY_SECONDS,
    )


def _release(observation: RunObservation, why: str) -> Plan:
    run = f"{observation.namespace}/{observation.uid}"
    advice = f"To delete them, run `rlrun gc --mark-deleted {run}` or use an S3 client."
    message = f"{why} Garbage collection reports the files, but keeps them. {advice}"
    event = EventRecord(Reason.ARTIFACTS_NOT_DELETED, message, warning=True)
    return Plan(events=(event,), remove_finalizer=True)


def _status(observation: RunObservation, message: str, now: datetime) -> RLRunStatus:
    problem = Problem(reason=Reason.DELETING_ARTIFACTS, message=message)
    return apply_change(observation.new_status(), StatusChange(fields=reason_fields(problem)), now)
