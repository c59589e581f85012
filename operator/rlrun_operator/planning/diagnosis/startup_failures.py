"""How long pods have been kept from starting, and whether the failure policy still waits.

No timestamp of Kubernetes says since when an image cannot be pulled, so the status remembers it for each pod. A pod
that was replaced begins anew; one whose obstacle is gone for a moment, too.
"""

from collections.abc import Sequence
from datetime import datetime

from rlrun.api.run_sections.failure_policy import FailurePolicy
from rlrun.api.run_status import ComponentStatus, PodRecord, StartupFailureKind
from rlrun.kube.objects import Obj
from rlrun.protocol.problem import Problem

from rlrun_operator.planning.diagnosis.pod_diagnostics import diagnose_pod

FIELDS = {
    StartupFailureKind.image_pull: "imagePullDeadlineSeconds",
    StartupFailureKind.config_error: "configErrorDeadlineSeconds",
    StartupFailureKind.unschedulable: "unschedulableDeadlineSeconds",
}


def record_startup_failures(
    components: Sequence[ComponentStatus], pods: Sequence[Obj], now: datetime
) -> list[ComponentStatus]:
    """The memory with what keeps each pod from starting now."""
    found = {pod["metadata"]["uid"]: trouble.obstacle for pod in pods if (trouble := diagnose_pod(pod))}
    return [c.model_copy(update={"pods": [_noted(r, found.get(r.uid), now) for r in c.pods]}) for c in components]


def expired_startup_failure(
    policy: FailurePolicy, components: Sequence[ComponentStatus], pods: Sequence[Obj], now: datetime
) -> Problem | None:
    """The first obstacle that has lasted longer than the policy waits."""
    limits = {
        StartupFailureKind.image_pull: policy.image_pull_deadline_seconds,
        StartupFailureKind.config_error: policy.config_error_deadline_seconds,
        StartupFailureKind.unschedulable: policy.unschedulable_deadline_seconds,
    }
    records = {record.uid: record for component in components for record in component.pods}
    for pod in pods:
        trouble, record = diagnose_pod(pod), records.get(pod["metadata"]["uid"])
        if trouble is None or trouble.obstacle is None or record is None or record.obstacle_since is None:
            continue
        limit = limits[trouble.obstacle]
        if limit is not None and (now - record.obstacle_since).total_seconds() >= limit:
            return Problem(
                reason=trouble.problem.reason,
                message=f"not mended within {limit} s (failurePolicy.{FIELDS[trouble.obstacle]}): "
                f"{trouble.problem.message}",
            )
    return None


def _noted(record: PodRecord, obstacle: StartupFailureKind | None, now: datetime) -> PodRecord:
    if obstacle is record.obstacle:
        return record
    since = now if obstacle is not None else None
    return record.model_copy(update={"obstacle": obstacle, "obstacle_since": since})
