"""Pods that wait for quota in a queue of Kueue.

Kueue suspends a Job that names a queue until it is admitted, and gives the pods of a Deployment a scheduling gate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rlrun.kube.objects import Obj, attempt_of, label
from rlrun.kube.pods import component_of, is_leaving, role_of
from rlrun.protocol.problem import Problem

from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.resources.children import QUEUE_LABEL

WAITING_FOR_QUOTA = "WaitingForQuota"
GATE_PREFIX = "kueue.x-k8s.io/"


@dataclass(frozen=True)
class QueuedWorkload:
    """A Job or a pod that Kueue has not admitted yet."""

    role: str
    component: str
    namespace: str
    queue: str


def queued_workloads(observation: RunObservation, attempt: int) -> list[QueuedWorkload]:
    """Return the attempt's workloads that wait for admission."""
    jobs = [j for j in observation.owned_children("Job") if attempt_of(j) == attempt and _is_suspended(j)]
    pods = [p for p in observation.pods_of(attempt) if _is_gated(p) and not is_leaving(p)]
    return [
        QueuedWorkload(role_of(o), component_of(o), observation.namespace, label(o, QUEUE_LABEL))
        for o in (*jobs, *pods)
    ]


def quota_problem(workloads: Sequence[QueuedWorkload]) -> Problem | None:
    """Return the problem of queued workloads, or None without any."""
    if not workloads:
        return None
    components = ", ".join(sorted({w.component for w in workloads}))
    queue = next((f"the LocalQueue {w.queue}" for w in workloads if w.queue), "a queue")
    return Problem(
        reason=WAITING_FOR_QUOTA,
        message=f"Pods of {components} wait for quota in {queue}. See the queue with `kubectl get workloads -n "
        f"{workloads[0].namespace}`.",
    )


def _is_suspended(job: Obj) -> bool:
    # Without a queue a user or another program suspended the Job; the operator never does.
    return bool(job.get("spec", {}).get("suspend")) and bool(label(job, QUEUE_LABEL))


def _is_gated(pod: Obj) -> bool:
    gates = pod.get("spec", {}).get("schedulingGates") or []
    return any(str(gate.get("name", "")).startswith(GATE_PREFIX) for gate in gates)
