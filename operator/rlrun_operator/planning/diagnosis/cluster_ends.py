"""Explanation of pods that the cluster ended or did not admit, from the reason and the message of the pod itself."""

from rlrun.constants import Reason
from rlrun.kube.objects import Obj
from rlrun.kube.pods import component_of, is_rejected, node_of
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
}


def explain_cluster_end(pod: Obj) -> Problem | None:
    """Return why the pod failed without an end of its own processes, or None if its status does not say so."""
    status = pod.get("status", {})
    reason, words = str(status.get("reason") or ""), str(status.get("message") or "").strip()
    if status.get("phase") != "Failed" or not reason:
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
