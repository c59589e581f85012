"""Explanation of pods that the cluster ended or did not admit, from the reason and the message of the pod itself."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from rlrun.constants import Reason
from rlrun.kube.conditions import parse_time
from rlrun.kube.objects import Obj
from rlrun.kube.pods import (
    EVICTED,
    component_of,
    condition_of,
    is_alive,
    is_leaving,
    is_out_of_disk,
    is_ready,
    is_rejected,
    node_of,
)
from rlrun.protocol.problem import Problem

OUT_OF = "OutOf"
"""Begin of the kubelet's reasons for pods that do not fit: OutOfcpu, OutOfmemory, OutOfpods, OutOfnvidia.com/gpu."""
REJECTION_ADVICE = {
    "UnexpectedAdmissionError": "Check the node's device plugin: its GPUs may be unhealthy or in use.",
    "NodeAffinity": "The node's labels have changed: compare them with the pod's node selector.",
    "NodeShutdown": "The node shuts down; another node takes the next pod.",
    "Evicted": "The node lacks disk or memory: free it, or cordon it with `kubectl cordon`.",
    "TopologyAffinityError": "The node cannot give the pod CPUs and GPUs of one NUMA node: change the kubelet's "
    "topology manager policy, or the requests.",
    "VolumeAttachmentLimitExceeded": "The node has as many volumes attached as it may.",
}
END_ADVICE = {
    "Evicted": "The node lacked memory or disk. If this repeats, request as much as the pod uses.",
    "Preempting": "A critical pod of the node needed the room.",
    "Terminated": "The node was shut down.",
    "NodeShutdown": "The node was shut down.",
    "NodeLost": "The node does not report to Kubernetes.",
    "PreemptionByScheduler": "A pod of higher priority takes its node: see `spec.priorityClassName`.",
    "DeletionByTaintManager": "The node has a taint that the pod does not tolerate, or does not report.",
    "EvictionByEvictionAPI": "Someone drains the node.",
    "DeletionByPodGC": "The node does not exist.",
}
REPEATED = 2
"""Number of ends in a row from which a component's next pod would end in the same way."""
REPEATED_WITHIN = timedelta(minutes=30)
"""Time between the creations of the first and the last pod of such a row, and from the last one's until now."""


def explain_cluster_end(pod: Obj) -> Problem | None:
    """Return why the pod ends without an end of its own processes, or None if its status does not say so."""
    reason, words = _words_of(pod)
    if not reason:
        return None
    node = f"node {node_of(pod)}" if node_of(pod) else "its node"
    said = f"{reason}: {words}".rstrip(":. ") + "."
    if is_rejected(pod):
        advice = REJECTION_ADVICE.get(reason) or (
            "Another pod has taken what the scheduler counted as free."
            if reason.startswith(OUT_OF)
            else f"See `kubectl describe {node}`."
        )
        message = f"{component_of(pod)}: {node} did not admit pod {pod['metadata']['name']}: {said} {advice}"
        return Problem(reason=Reason.POD_REJECTED, message=f"{message} Kubernetes creates another pod.")
    advice = END_ADVICE.get(reason, "")
    message = f"{component_of(pod)}: Kubernetes ended pod {pod['metadata']['name']} on {node}: {said} {advice}"
    return Problem(reason=Reason.POD_EVICTED, message=f"{message.rstrip()} Kubernetes creates another pod.")


def is_refused_by_node(pod: Obj) -> bool:
    """True if the pod's node did not admit it, or has evicted it for a lack of memory or disk."""
    evicted = pod.get("status", {}).get("reason") == EVICTED and not is_out_of_disk(pod)
    return is_rejected(pod) or (evicted and not is_alive(pod))


def repeated_end(pods: Sequence[Obj], wanted: Mapping[str, Mapping[str, int]], now: datetime) -> Problem | None:
    """Return the problem of a component without a ready pod that nodes evict or refuse again and again, or None.

    Kubernetes replaces such a pod at once, without a pause or a limit. `wanted`: number of pods by role and component.
    All times are the API server's, also `now`. A pod that ran for long ends a row. Other disruptions leave no pod, or
    are the platform's will.
    """
    counts = {component: count for components in wanted.values() for component, count in components.items()}
    for component, count in counts.items():
        own = sorted((p for p in pods if component_of(p) == component), key=_creation_of)
        ended = [p for p in own if is_refused_by_node(p)]
        # All pods of a component may end together, once.
        row = REPEATED + count - 1
        if len(ended) < row or any(map(is_ready, own)):
            continue
        first, last = parse_time(_creation_of(ended[-row])), parse_time(_creation_of(ended[-1]))
        problem = explain_cluster_end(ended[-1])
        if problem is None or first is None or last is None:
            continue
        if max(last - first, now - last) <= REPEATED_WITHIN:
            text = problem.message.removesuffix(" Kubernetes creates another pod.")
            return Problem(reason=problem.reason, message=f"{text} {len(ended)} pods of {component} ended like this.")
    return None


def _words_of(pod: Obj) -> tuple[str, str]:
    """Return reason and message of an end by the cluster, empty without one. A pod that is deleted has a condition."""
    status, disruption = pod.get("status", {}), condition_of(pod, "DisruptionTarget")
    said = status if status.get("phase") == "Failed" and status.get("reason") else {}
    if not said and disruption.get("status") == "True" and (is_leaving(pod) or status.get("phase") == "Failed"):
        said = disruption
    return str(said.get("reason") or ""), str(said.get("message") or "").strip()


def _creation_of(pod: Obj) -> str:
    return str(pod["metadata"].get("creationTimestamp") or "")
