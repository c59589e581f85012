"""The end of an RLRun object.

Children go by their owner references. Files in S3 go only with artifactPolicy Delete, for which the run carries a
finalizer: first the pods must be gone (they would write again), then the files are deleted. All of it has a deadline,
because an S3 that never answers must not keep a namespace from being deleted, and whoever cannot wait that long says
so with an annotation.
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
from rlrun_operator.planning.plan.status_builder import apply_change, new_status, reason_fields
from rlrun_operator.planning.policies.artifacts import without_owner
from rlrun_operator.planning.policies.children import active_workloads
from rlrun_operator.resources.platform import run_layout

RETRY_SECONDS = 2.0


def plan_deletion(seen: RunObservation, settings: OperatorSettings, now: datetime) -> Plan:
    """`seen.run` has a deletionTimestamp."""
    metadata = seen.run["metadata"]
    if FINALIZER not in (metadata.get("finalizers") or []):
        return Plan()
    root = run_layout(settings, seen.namespace, seen.uid).root
    if (seen.run.get("spec") or {}).get("artifactPolicy") != "Delete":
        return Plan(remove_finalizer=True)
    stay = seen.catalog.objects_in_use
    freed = tuple(without_owner(o) for o in stay if o["metadata"].get("ownerReferences"))
    return replace(_plan_files(seen, settings, now, str(root), stay), applies=freed)


def _plan_files(
    seen: RunObservation, settings: OperatorSettings, now: datetime, root: str, stay: Sequence[Obj]
) -> Plan:
    if annotation(seen.run, SKIP_DELETION_ANNOTATION) == "true":
        return _give_up(f"The files at {root} stay, as the annotation {SKIP_DELETION_ANNOTATION} asks for.")
    waited = seconds(parse_time(seen.run["metadata"]["deletionTimestamp"]), now)
    if waited >= settings.artifact_deletion_seconds:
        limit = f"{settings.artifact_deletion_seconds:.0f} s"
        return _give_up(f"The files at {root} could not be deleted within {limit} and stay.")
    status = _status(seen, settings, root, now)
    deletes = tuple(active_workloads(seen))
    # Ended pods as well: the log of a pod that outlives its run is kept, and would come after the purge.
    pods = [p for p in seen.pods if is_alive(p) or label(p, RUN_UID_LABEL) == seen.uid]
    if deletes or pods or not seen.catalog.has_references:
        return Plan(deletes=deletes, status=status, requeue_after=RETRY_SECONDS)
    kept = tuple(o["spec"]["uri"] for o in stay)
    # Before their files: nothing may say Ready of what is half deleted.
    deletes = tuple(ObjectRef.of(o) for o in seen.catalog.objects if o["spec"]["uri"] not in kept)
    return Plan(
        deletes=deletes,
        status=status,
        purge=RunFilesDeletion(root, kept),
        remove_finalizer=True,
        requeue_after=RETRY_SECONDS,
    )


def _give_up(why: str) -> Plan:
    note = EventRecord(
        Reason.ARTIFACTS_NOT_DELETED, f"{why} Delete them with your S3 client, or with `rlrun gc`.", warning=True
    )
    return Plan(events=(note,), remove_finalizer=True)


def _status(seen: RunObservation, settings: OperatorSettings, root: str, now: datetime) -> RLRunStatus:
    problem = Problem(
        reason=Reason.DELETING_ARTIFACTS,
        message=f"the files at {root} are being deleted (artifactPolicy Delete); what is not gone after "
        f"{settings.artifact_deletion_seconds:.0f} s stays. `kubectl annotate rlrun {seen.name} -n "
        f"{seen.namespace} {SKIP_DELETION_ANNOTATION}=true` lets the run go at once, without its files.",
    )
    status = new_status(seen.run.get("status"), seen.generation)
    return apply_change(status, StatusChange(fields=reason_fields(problem)), now)
