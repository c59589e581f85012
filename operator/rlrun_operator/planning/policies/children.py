"""Which children to write.

An attempt's children are built once. A child is written when it is missing or belongs to an older attempt, and the two
that carry data (ConfigMap, Secret) also when their data have changed. Nothing else is ever compared: a new version of
the operator, or of the RLModel, must not restart pods that train. What someone changed by hand stays changed until
the object is deleted; then it is made anew.
"""

import hashlib
import json
from collections.abc import Iterable

from rlrun.constants import RUN_UID_LABEL
from rlrun.kube.objects import Obj, ObjectRef, attempt_of, label
from rlrun.kube.pods import is_alive, role_of

from rlrun_operator.planning.plan.actions import ConfigRefresh
from rlrun_operator.planning.plan.observation import RunObservation

COMPARED_DATA = ("ConfigMap", "Secret")
ENDED_WITH_RUN = ("Deployment", "Secret")


def missing_children(desired: Iterable[Obj], seen: RunObservation) -> list[Obj]:
    """The children to apply, in the order given."""
    existing = {(c["kind"], c["metadata"]["name"]): c for c in seen.owned_children()}
    return [c for c in desired if _needs_write(c, existing.get((c["kind"], c["metadata"]["name"])))]


def _needs_write(desired: Obj, existing: Obj | None) -> bool:
    if existing is None or attempt_of(existing) != attempt_of(desired):
        return True
    return desired["kind"] in COMPARED_DATA and (existing.get("data") or {}) != desired["data"]


def refreshes(applies: Iterable[Obj], seen: RunObservation) -> list[ConfigRefresh]:
    """Return the refreshes of the pods that have mounted a ConfigMap which is about to change."""
    changed = (c for c in applies if c["kind"] == "ConfigMap" and _exists(c, seen))
    return [
        ConfigRefresh(pod["metadata"]["name"], pod["metadata"]["uid"], _digest(config))
        for config in changed
        for pod in seen.pods_of(attempt_of(config))
        if role_of(pod) == "orchestrator" and is_alive(pod)
    ]


def _exists(config: Obj, seen: RunObservation) -> bool:
    name, attempt = config["metadata"]["name"], attempt_of(config)
    return any(c["metadata"]["name"] == name and attempt_of(c) == attempt for c in seen.owned_children("ConfigMap"))


def _digest(config: Obj) -> str:
    return hashlib.sha256(json.dumps(config["data"], sort_keys=True).encode()).hexdigest()[:16]


def stale_children(seen: RunObservation, attempt: int) -> tuple[list[ObjectRef], bool]:
    """What earlier attempts, or an earlier run of the same name, left behind.

    Returns what to delete, and whether to wait: no process of two attempts may live at the same time, because both
    would write to the same places.
    """
    foreign = [c for c in seen.children if label(c, RUN_UID_LABEL) != seen.uid]
    old = [c for c in seen.owned_children("Deployment", "Job") if attempt_of(c) != attempt]
    ours = {id(p) for p in seen.pods_of(attempt)}
    old_pods = [p for p in seen.pods if id(p) not in ours and is_alive(p)]
    return [ObjectRef.of(c) for c in (*foreign, *old)], bool(foreign or old or old_pods)


def active_workloads(seen: RunObservation) -> list[ObjectRef]:
    """Everything that keeps pods alive, to be deleted when the run is suspended."""
    return [ObjectRef.of(c) for c in seen.owned_children("Deployment", "Job")]


def workloads_to_delete_after_finish(seen: RunObservation) -> list[ObjectRef]:
    """What a finished run no longer needs: all pods but the orchestrator's last one, and the S3 credentials.

    A Job that has ended stays, because its pod's log and last word are still of interest.
    """
    active_jobs = [j for j in seen.owned_children("Job") if not _has_ended(j, seen)]
    return [ObjectRef.of(c) for c in (*seen.owned_children(*ENDED_WITH_RUN), *active_jobs)]


def _has_ended(job: Obj, seen: RunObservation) -> bool:
    if role_of(job) != "orchestrator":
        return False
    conditions = job.get("status", {}).get("conditions") or []
    if any(c["type"] in ("Complete", "Failed") and c.get("status") == "True" for c in conditions):
        return True
    pods = [p for p in seen.pods_of(attempt_of(job)) if role_of(p) == "orchestrator"]
    return bool(pods) and all(p.get("status", {}).get("phase") == "Succeeded" for p in pods)
