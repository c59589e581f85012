"""The end of an RLRun object.

Children go by their owner references. Files in S3 go only with artifactPolicy Delete, for which the run carries a
finalizer: first the pods must be gone (they would write again), then the files are deleted. All of it has a deadline,
because an S3 that never answers must not keep a namespace from being deleted.
"""

from datetime import datetime

from rlrun.controller.observed import Note, Observed, Plan, Purge
from rlrun.controller.plan.children import workloads
from rlrun.controller.plan.draft import parse_time, seconds
from rlrun.controller.plan.troubles import is_alive
from rlrun.resources.naming import FINALIZER
from rlrun.resources.platform import run_layout
from rlrun.resources.settings import Settings

RETRY_SECONDS = 2.0


def plan_deletion(seen: Observed, settings: Settings, now: datetime) -> Plan:
    """`seen.run` has a deletionTimestamp."""
    metadata = seen.run["metadata"]
    if FINALIZER not in (metadata.get("finalizers") or []):
        return Plan()
    root = run_layout(settings, seen.namespace, seen.uid).root
    if (seen.run.get("spec") or {}).get("artifactPolicy") != "Delete":
        return Plan(remove_finalizer=True)
    waited = seconds(parse_time(metadata["deletionTimestamp"]), now)
    if waited >= settings.artifact_deletion_seconds:
        note = Note(
            "ArtifactsNotDeleted",
            f"The files at {root} could not be deleted within {settings.artifact_deletion_seconds:.0f} s and stay: "
            f"delete them with your S3 client.",
            warning=True,
        )
        return Plan(events=(note,), remove_finalizer=True)
    deletes = tuple(workloads(seen))
    if deletes or any(is_alive(p) for p in seen.pods):
        return Plan(deletes=deletes, requeue_after=RETRY_SECONDS)
    deployed = tuple(
        o["spec"]["uri"] for o in seen.artifact_objects if o["kind"] == "RLAdapter" and o["spec"].get("deployed")
    )
    return Plan(purge=Purge(str(root), deployed), remove_finalizer=True, requeue_after=RETRY_SECONDS)
