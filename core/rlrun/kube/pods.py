"""Pure functions that read pods: their state, their containers, and how containers ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rlrun.constants import COMPONENT_LABEL, ROLE_LABEL
from rlrun.kube.conditions import parse_time
from rlrun.kube.objects import Obj, label

EVICTED = "Evicted"
DISRUPTION_REASONS = frozenset({EVICTED, "Preempting", "NodeShutdown", "Terminated", "NodeLost"})
"""Reasons in a pod's status for an end by the cluster, not by a process."""
TAINT_EVICTION = "DeletionByTaintManager"
DISK_LIMIT_MESSAGES = (
    "exceeded its local ephemeral storage limit",
    "ephemeral local storage usage exceeds",
    "Usage of EmptyDir volume",
)
"""Parts of the kubelet's message for a pod that exceeded a limit of a container, of all containers, or of a volume."""


@dataclass(frozen=True)
class Termination:
    """The end of one container."""

    container: str
    exit_code: int
    reason: str
    message: str
    finished_at: datetime | None
    started_at: datetime | None = None


def role_of(pod: Obj) -> str:
    """Return the role of the pod's process: trainer, inference, environment or orchestrator."""
    return label(pod, ROLE_LABEL)


def component_of(pod: Obj) -> str:
    """Return the component of the run that the pod belongs to: trainer, env-0, ..."""
    return label(pod, COMPONENT_LABEL)


def is_ready(pod: Obj) -> bool:
    """True if the pod reports Ready and is not being deleted."""
    return _has_condition(pod, "Ready") and not is_leaving(pod)


def ready_since(pod: Obj) -> datetime | None:
    """Return since when the pod has been ready or not ready, or None if it does not say."""
    conditions = pod.get("status", {}).get("conditions") or []
    return next((parse_time(c.get("lastTransitionTime")) for c in conditions if c.get("type") == "Ready"), None)


def is_leaving(pod: Obj) -> bool:
    """True if the pod is being deleted."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_alive(pod: Obj) -> bool:
    """True if the pod has, or may yet get, a running container."""
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def is_stopped(pod: Obj) -> bool:
    """True if the pod ended without an error though its containers always restart: its node has stopped it."""
    phase, restarts = pod.get("status", {}).get("phase"), pod.get("spec", {}).get("restartPolicy")
    return bool(phase == "Succeeded" and restarts == "Always")


def is_out_of_disk(pod: Obj) -> bool:
    """True if the kubelet evicted the pod for exceeding its own limit of ephemeral storage, not for a full node."""
    status = pod.get("status", {})
    message = str(status.get("message") or "")
    return status.get("reason") == EVICTED and any(part in message for part in DISK_LIMIT_MESSAGES)


def is_disrupted(pod: Obj) -> bool:
    """True if the cluster ended the pod (eviction, preemption, node shutdown). It does not count as a crash."""
    if is_out_of_disk(pod):
        return False
    return _has_condition(pod, "DisruptionTarget") or pod.get("status", {}).get("reason") in DISRUPTION_REASONS


def is_node_silent(pod: Obj) -> bool:
    """True if Kubernetes has marked the pod because its node does not report.

    A kubelet derives Ready from ContainersReady: without readiness gates, only the controller of nodes lets them
    differ.
    """
    return is_alive(pod) and not _has_condition(pod, "Ready") and _has_condition(pod, "ContainersReady")


def is_evicted_by_taint(pod: Obj) -> bool:
    """True if Kubernetes deletes the pod for a taint of its node. It taints nodes that do not report."""
    conditions = pod.get("status", {}).get("conditions") or []
    return any(c["type"] == "DisruptionTarget" and c.get("reason") == TAINT_EVICTION for c in conditions)


def node_of(pod: Obj) -> str:
    """Return the name of the pod's node, or an empty string before it has one."""
    return str(pod.get("spec", {}).get("nodeName") or "")


def container_statuses(pod: Obj) -> list[Obj]:
    """Return the statuses of the init containers, then those of the containers."""
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def terminations(pod: Obj) -> list[Termination]:
    """Return the latest failed end of each container that has ended with an error."""
    ends = []
    for status in container_statuses(pod):
        for state in (status.get("state") or {}, status.get("lastState") or {}):
            ended: Obj | None = state.get("terminated")
            if ended and ended.get("exitCode", 0) != 0:
                ends.append(_termination(status["name"], ended))
                break
    return ends


def termination_of(pod: Obj, container: str) -> Termination | None:
    """Return the end of this container, or None while it runs or has not started."""
    for status in container_statuses(pod):
        ended = (status.get("state") or {}).get("terminated")
        if status["name"] == container and ended:
            return _termination(container, ended)
    return None


def container_image(pod: Obj, container: str) -> str:
    """Return the image of this container, or an empty string if the pod does not have it."""
    return str(_container(pod, container).get("image", ""))


def memory_limit(pod: Obj, container: str) -> str:
    """Return the memory limit of this container as in its spec, or an empty string without one."""
    return str(((_container(pod, container).get("resources") or {}).get("limits") or {}).get("memory", ""))


def relevant_pods(pods: Sequence[Obj]) -> list[Obj]:
    """Return every pod that has not ended, and the newest ended pod of each component without such a pod."""
    alive = [p for p in pods if is_alive(p)]
    covered = {component_of(p) for p in alive}
    dead: dict[str, Obj] = {}
    for pod in sorted((p for p in pods if not is_alive(p)), key=lambda p: p["metadata"].get("creationTimestamp") or ""):
        if component_of(pod) not in covered:
            dead[component_of(pod)] = pod
    return [*alive, *dead.values()]


def _has_condition(pod: Obj, kind: str) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


def _termination(name: str, ended: Mapping[str, Any]) -> Termination:
    return Termination(
        container=name,
        exit_code=int(ended.get("exitCode", 0)),
        reason=str(ended.get("reason") or ""),
        message=str(ended.get("message") or ""),
        finished_at=parse_time(ended.get("finishedAt")),
        started_at=parse_time(ended.get("startedAt")),
    )


def _container(pod: Obj, name: str) -> Obj:
    spec = pod.get("spec", {})
    containers: list[Obj] = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    return next((c for c in containers if c["name"] == name), {})
