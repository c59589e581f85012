"""The end of an RLRun object.

Children go by their owner references. Files in S3 go only with artifactPolicy Delete, for which the run carries a
finalizer: first the pods must be gone (they would write again), then the files are deleted. All of it has a deadline,
because an S3 that never answers must not keep a namespace from being deleted, and whoever cannot wait that long says
so with an annotation.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from rlrun.controller.observed import Observed, Plan, Purge
from rlrun.controller.plan.artifacts import without_owner
from rlrun.controller.plan.children import workloads
from rlrun.controller.plan.claims import claimed_steps
from rlrun.controller.plan.draft import Draft
from rlrun.kube.conditions import parse_time, seconds
from rlrun.kube.events import EventRecord as Note
from rlrun.kube.objects import Obj, annotation, label
from rlrun.kube.objects import ObjectRef as Ref
from rlrun.kube.pods import is_alive
from rlrun.resources.platform import run_layout
from rlrun.resources.settings import Settings
from rlrun.schema.labels import FINALIZER, RUN_UID_LABEL, SKIP_DELETION_ANNOTATION
from rlrun.schema.run_status import RLRunStatus
from rlrun.schema.wire import Problem

RETRY_SECONDS = 2.0


def plan_deletion(seen: Observed, settings: Settings, now: datetime) -> Plan:
    """`seen.run` has a deletionTimestamp."""
    metadata = seen.run["metadata"]
    if FINALIZER not in (metadata.get("finalizers") or []):
        return Plan()
    root = run_layout(settings, seen.namespace, seen.uid).root
    if (seen.run.get("spec") or {}).get("artifactPolicy") != "Delete":
        return Plan(remove_finalizer=True)
    stay = in_use(seen)
    freed = tuple(without_owner(o) for o in stay if o["metadata"].get("ownerReferences"))
    return replace(_plan_files(seen, settings, now, str(root), stay), applies=freed)


def in_use(seen: Observed) -> list[Obj]:
    """Artifacts that outlive their run whatever its policy: deployed adapters, and what other runs start from."""
    checkpoints = {int(o["spec"]["step"]): o for o in seen.artifact_objects if o["kind"] == "RLCheckpoint"}
    names = {step: o["metadata"]["name"] for step, o in checkpoints.items()}
    claimed = claimed_steps(seen.namespace, names, checkpoints, seen.claims or ())
    deployed = [o for o in seen.artifact_objects if o["kind"] == "RLAdapter" and o["spec"].get("deployed")]
    return [*deployed, *(checkpoints[step] for step in sorted(claimed))]


def _plan_files(seen: Observed, settings: Settings, now: datetime, root: str, stay: Sequence[Obj]) -> Plan:
    if annotation(seen.run, SKIP_DELETION_ANNOTATION) == "true":
        return _give_up(f"The files at {root} stay, as the annotation {SKIP_DELETION_ANNOTATION} asks for.")
    waited = seconds(parse_time(seen.run["metadata"]["deletionTimestamp"]), now)
    if waited >= settings.artifact_deletion_seconds:
        limit = f"{settings.artifact_deletion_seconds:.0f} s"
        return _give_up(f"The files at {root} could not be deleted within {limit} and stay.")
    status = _status(seen, settings, root, now)
    deletes = tuple(workloads(seen))
    # Ended pods as well: the log of a pod that outlives its run is kept, and would come after the purge.
    pods = [p for p in seen.pods if is_alive(p) or label(p, RUN_UID_LABEL) == seen.uid]
    if deletes or pods or seen.claims is None:
        return Plan(deletes=deletes, status=status, requeue_after=RETRY_SECONDS)
    kept = tuple(o["spec"]["uri"] for o in stay)
    # Before their files: nothing may say Ready of what is half deleted.
    deletes = tuple(Ref.of(o) for o in seen.artifact_objects if o["spec"]["uri"] not in kept)
    return Plan(
        deletes=deletes, status=status, purge=Purge(root, kept), remove_finalizer=True, requeue_after=RETRY_SECONDS
    )


def _give_up(why: str) -> Plan:
    note = Note("ArtifactsNotDeleted", f"{why} Delete them with your S3 client, or with `rlrun gc`.", warning=True)
    return Plan(events=(note,), remove_finalizer=True)


def _status(seen: Observed, settings: Settings, root: str, now: datetime) -> RLRunStatus:
    draft = Draft(seen.run.get("status"), int(seen.run["metadata"].get("generation") or 0), now)
    draft.explain(
        Problem(
            reason="DeletingArtifacts",
            message=f"the files at {root} are being deleted (artifactPolicy Delete); what is not gone after "
            f"{settings.artifact_deletion_seconds:.0f} s stays. `kubectl annotate rlrun {seen.name} -n "
            f"{seen.namespace} {SKIP_DELETION_ANNOTATION}=true` lets the run go at once, without its files.",
        )
    )
    return draft.status
