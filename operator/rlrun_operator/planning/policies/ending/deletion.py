"""Deletion of an RLRun object.

Kubernetes deletes the children by their owner references. The operator deletes the files in S3 only with artifactPolicy
Delete, for which the run has a finalizer: it waits until the pods have terminated, because they could write again, and
then deletes the files. The deletion has a deadline, so that an unreachable S3 does not block the deletion of a
namespace; an annotation skips it.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from rlrun.api.run_status import RLRunStatus
from rlrun.constants import FINALIZER, RUN_UID_LABEL, SKIP_DELETION_ANNOTATION, Reason
from rlrun.kube.conditions import parse_time, seconds
from rlrun.kube.events import EventRecord
from rlrun.kube.objects import Obj, ObjectRef, annotation, label
from rlrun.kube.pods import is_alive
from rlrun.protocol.problem import Problem

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.plan.actions import Plan, RunFilesDeletion, StatusChange
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.plan.status_builder import apply_change, reason_fields
from rlrun_operator.planning.policies.artifacts.artifact_objects import without_owner
from rlrun_operator.planning.policies.children.child_selection import active_workloads
from rlrun_operator.resources.platform import run_layout

RETRY_SECONDS = 2.0


def plan_deletion(observation: RunObservation, settings: OperatorSettings, now: datetime) -> Plan:
    """Return the plan for a run with a deletionTimestamp."""
    metadata = observation.run["metadata"]
    if FINALIZER not in (metadata.get("finalizers") or []):
        return Plan()
    root = run_layout(settings, observation.namespace, observation.uid).root
    if (observation.run.get("spec") or {}).get("artifactPolicy") != "Delete":
        return Plan(remove_finalizer=True)
    kept_objects = observation.catalog.objects_in_use
    freed = tuple(without_owner(o) for o in kept_objects if o["metadata"].get("ownerReferences"))
    return replace(_plan_files(observation, settings, now, str(root), kept_objects), artifact_applies=freed)


def _plan_files(
    observation: RunObservation, settings: OperatorSettings, now: datetime, root: str, kept_objects: Sequence[Obj]
) -> Plan:
    if annotation(observation.run, SKIP_DELETION_ANNOTATION) == "true":
        return _keep_files(f"The files at {root} were not deleted (annotation {SKIP_DELETION_ANNOTATION}).")
    waited = seconds(parse_time(observation.run["metadata"]["deletionTimestamp"]), now)
    if waited >= settings.artifact_deletion_seconds:
        limit = f"{settings.artifact_deletion_seconds:.0f} s"
        return _keep_files(f"The files at {root} could not be deleted within {limit}.")
    if (problem := observation.tenancy_problem) is not None:
        # Its pods may still write, and the operator cannot end them.
        status = apply_change(observation.new_status(), StatusChange(fields=reason_fields(problem)), now)
        return Plan(status=status, requeue_after=RETRY_SECONDS)
    status = _status(observation, settings, root, now)
    deletes = tuple(active_workloads(observation))
    # Terminated pods count as well: their logs are copied to S3, which must not happen after the deletion of the files.
    pods = [p for p in observation.pods if is_alive(p) or label(p, RUN_UID_LABEL) == observation.uid]
    if deletes or pods or not observation.catalog.has_references:
        return Plan(deletes=deletes, status=status, requeue_after=RETRY_SECONDS)
    kept = tuple(o["spec"]["uri"] for o in kept_objects)
    # Objects before files: no object may be Ready while its files are partly deleted.
    deletes = tuple(ObjectRef.of(o) for o in observation.catalog.objects if o["spec"]["uri"] not in kept)
    # The deletion of the files may take long, and the run needs no quota for it.
    deletes += tuple(ObjectRef.of(w) for w in (observation.kueue.workloads if observation.kueue else ()))
    return Plan(
        deletes=deletes,
        status=status,
        purge=RunFilesDeletion(root, kept),
        remove_finalizer=True,
        requeue_after=RETRY_SECONDS,
    )


def _keep_files(why: str) -> Plan:
    event = EventRecord(
        Reason.ARTIFACTS_NOT_DELETED, f"{why} Delete them with `rlrun gc` or an S3 client.", warning=True
    )
    return Plan(events=(event,), remove_finalizer=True)


def _status(observation: RunObservation, settings: OperatorSettings, root: str, now: datetime) -> RLRunStatus:
    problem = Problem(
        reason=Reason.DELETING_ARTIFACTS,
        message=f"Deleting the files at {root} (`spec.artifactPolicy` Delete), for at most "
        f"{settings.artifact_deletion_seconds:.0f} s. To delete the run at once and keep its files: `kubectl annotate "
        f"rlrun {observation.name} -n {observation.namespace} {SKIP_DELETION_ANNOTATION}=true`.",
    )
    return apply_change(observation.new_status(), StatusChange(fields=reason_fields(problem)), now)
