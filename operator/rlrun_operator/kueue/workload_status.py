"""Statuses that the owner of a Workload writes: quota released, finished, and pods ready.

Kueue expects the owner of an evicted Workload to stop its pods and then to release the quota. Kueue writes the status
by server-side apply, and the owner uses the same field manager. Fields of this manager that are missing from the
owner's request are therefore removed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rlrun.kube.conditions import parse_time, shorten
from rlrun.kube.objects import Obj, precondition_of, true_condition

ADMISSION_MANAGER = "kueue-admission"
"""Field manager with which Kueue and the owners of Workloads write the admission and its conditions."""
PODS_READY_MANAGER = "kueue-job-controller-PodsReady"
"""Field manager with which the owners of Workloads write the condition PodsReady."""
ADMISSION_CONDITIONS = (
    "QuotaReserved", "BlockedOnPreemptionGates", "Evicted", "Admitted", "Preempted", "Requeued", "DeactivationTarget",
    "Finished", "PodsReady",
)  # fmt: skip
COPIED_FIELDS = (
    "requeueState", "admissionChecks", "accumulatedPastExecutionTimeSeconds", "clusterName", "nominatedClusterNames",
    "unhealthyNodes", "preemptionGates",
)  # fmt: skip
REQUEUED_AT_ONCE = ("Preempted", "NodeFailures")
"""Eviction reasons after which the Workload is requeued immediately. For other reasons, Kueue decides when."""


FINISHED_REASONS = {True: "Succeeded", False: "Failed"}
"""Kueue's reasons for the condition Finished, by whether the Workload succeeded."""
READY_REASONS = {True: "Recovered", False: "Started"}
"""Kueue's reasons for a true condition PodsReady, by whether a pod has failed before."""


@dataclass(frozen=True)
class WorkloadStatus:
    """Workload status to apply, and the field manager to apply it with."""

    obj: Obj
    manager: str


def workload_condition(workload: Obj, kind: str) -> Obj | None:
    """Return the condition with the type `kind`, or None."""
    conditions = (workload.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == kind), None)


def is_condition_true(workload: Obj, kind: str) -> bool:
    """Return whether the condition with the type `kind` is True."""
    return true_condition(workload, kind) is not None


def release_quota(workload: Obj, now: datetime) -> WorkloadStatus:
    """Return the status that releases the quota of an evicted Workload and keeps it in its queue."""
    evicted = workload_condition(workload, "Evicted") or {}
    reason, message = str(evicted.get("reason") or "Evicted"), str(evicted.get("message") or "")
    requeued = reason in REQUEUED_AT_ONCE
    status = _copy_status(workload)
    if is_condition_true(workload, "Admitted"):
        since = parse_time((workload_condition(workload, "Admitted") or {}).get("lastTransitionTime")) or now
        past = int(status.get("accumulatedPastExecutionTimeSeconds") or 0)
        status["accumulatedPastExecutionTimeSeconds"] = past + max(0, int((now - since).total_seconds()))
    for kind, value, why, text in (
        ("Requeued", requeued, reason, message),
        ("QuotaReserved", False, "Pending", message),
        ("Admitted", False, "NoReservation", "The workload has no reservation"),
    ):
        _set(status, workload, kind, value, why, text, now)
    return _apply_status(workload, status, ADMISSION_MANAGER)


def finish_workload(workload: Obj, now: datetime, *, succeeded: bool, message: str) -> WorkloadStatus:
    """Return the status that finishes the Workload and releases its quota."""
    status = _copy_status(workload)
    if admission := (workload.get("status") or {}).get("admission"):
        status["admission"] = admission
        status.pop("resourceRequests", None)
    _set(status, workload, "Finished", True, FINISHED_REASONS[succeeded], message, now)
    return _apply_status(workload, status, ADMISSION_MANAGER)


def pods_ready(workload: Obj, ready: bool, now: datetime) -> WorkloadStatus | None:
    """Return an admitted Workload's status with the condition PodsReady, or None if the condition is up to date.

    If `waitForPodsReady` is configured, Kueue evicts Workloads that lack the condition for too long.
    """
    known = workload_condition(workload, "PodsReady")
    was_ready, before = (known or {}).get("status") == "True", (known or {}).get("reason")
    if ready:
        reason = READY_REASONS[before in ("WaitForRecovery", "Recovered")]
        message = "All pods reached readiness and the workload is running"
    elif was_ready or before == "WaitForRecovery":
        reason, message = "WaitForRecovery", "At least one pod has failed, waiting for recovery"
    else:
        reason, message = "WaitForStart", "Not all pods are ready or succeeded"
    if known is not None and (was_ready, before) == (ready, reason):
        return None
    status: Obj = {"conditions": []}
    _set(status, workload, "PodsReady", ready, reason, message, now)
    return _apply_status(workload, status, PODS_READY_MANAGER)


def _copy_status(workload: Obj) -> Obj:
    """Return the status fields owned by ADMISSION_MANAGER, without the admission itself."""
    old: Mapping[str, Any] = workload.get("status") or {}
    status = {key: old[key] for key in COPIED_FIELDS if old.get(key) not in (None, [], {})}
    if old.get("admission") is None and old.get("resourceRequests"):
        status["resourceRequests"] = old["resourceRequests"]
    if evictions := (old.get("schedulingStats") or {}).get("evictions"):
        status["schedulingStats"] = {"evictions": evictions}
    status["conditions"] = [c for kind in ADMISSION_CONDITIONS if (c := workload_condition(workload, kind)) is not None]
    return status


def _set(status: Obj, workload: Obj, kind: str, value: bool, reason: str, message: str, now: datetime) -> None:
    text = "True" if value else "False"
    old = workload_condition(workload, kind) or {}
    changed: Obj = {
        "type": kind,
        "status": text,
        "reason": reason,
        "message": shorten(message),
        "lastTransitionTime": old["lastTransitionTime"] if old.get("status") == text else f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "observedGeneration": int(workload["metadata"].get("generation") or 0),
    }
    status["conditions"] = [*(c for c in status["conditions"] if c["type"] != kind), changed]


def _apply_status(workload: Obj, status: Obj, manager: str) -> WorkloadStatus:
    obj = {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "metadata": precondition_of(workload),
        "status": status,
    }
    return WorkloadStatus(obj, manager)
