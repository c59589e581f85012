"""Facts about an observed pod: its state, its containers, and their terminations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from rlrun.api.base.pod_shape import OWN_CONTAINERS
from rlrun.constants import COMPONENT_LABEL, LOG_HOLD_CONTAINER, ROLE_LABEL, RUN_UID_LABEL
from rlrun.kube.conditions import parse_time
from rlrun.kube.objects import Obj, attempt_of, label

EVICTED = "Evicted"
DISRUPTION_REASONS = frozenset({EVICTED, "Preempting", "NodeShutdown", "Terminated", "NodeLost"})
"""Reasons in the status of a pod that the cluster terminated, as opposed to a pod whose process exited."""
REJECTED = "Pod was rejected"
"""Prefix of the kubelet's message for a pod that it has rejected."""
UNKNOWN_ENDS = frozenset({"ContainerStatusUnknown", "Unknown"})
"""Reasons of unobserved terminations: the container was missing after a restart of the node or its runtime."""
TAINT_EVICTION = "DeletionByTaintManager"
CLOSED_GATE = "ReadinessGatesNotReady"
"""Reason of the condition Ready if all containers are ready but a readiness gate is not."""
DISK_LIMIT_MESSAGES = (
    "exceeded its local ephemeral storage limit",
    "ephemeral local storage usage exceeds",
    "Usage of EmptyDir volume",
)
"""Parts of the kubelet's message for a pod that exceeded the storage limit of a container, the pod or a volume."""


@dataclass(frozen=True)
class Termination:
    """How a container terminated: exit code, reason, message and times."""

    container: str
    exit_code: int
    reason: str
    message: str
    finished_at: datetime | None
    started_at: datetime | None = None


def role_of(obj: Obj) -> str:
    """Return the role in the object's labels (trainer, inference, environment or orchestrator), or an empty string."""
    return label(obj, ROLE_LABEL)


def component_of(obj: Obj) -> str:
    """Return the component of the run that the object belongs to (trainer, env-0, ...), or an empty string."""
    return label(obj, COMPONENT_LABEL)


def is_leaving(obj: Obj) -> bool:
    """Return whether the object is being deleted."""
    return bool(obj["metadata"].get("deletionTimestamp"))


@dataclass(frozen=True)
class Pod:
    """Facts about a pod as the API server sent it. Each fact is computed at most once."""

    obj: Obj
    """The pod. Do not change it."""

    @cached_property
    def name(self) -> str:
        """Name of the pod."""
        return str(self.obj["metadata"]["name"])

    @cached_property
    def namespace(self) -> str:
        """Namespace of the pod."""
        return str(self.obj["metadata"].get("namespace", ""))

    @cached_property
    def uid(self) -> str:
        """UID of the pod."""
        return str(self.obj["metadata"]["uid"])

    @cached_property
    def run_uid(self) -> str:
        """UID of the run that the pod belongs to, or an empty string."""
        return label(self.obj, RUN_UID_LABEL)

    @cached_property
    def attempt(self) -> int:
        """Attempt that the pod belongs to, or 0 if its label is missing."""
        return attempt_of(self.obj)

    @cached_property
    def role(self) -> str:
        """Role of the pod's process."""
        return role_of(self.obj)

    @cached_property
    def component(self) -> str:
        """Component of the run that the pod belongs to."""
        return component_of(self.obj)

    @cached_property
    def node(self) -> str:
        """Name of the pod's node, or an empty string before the pod is scheduled."""
        return str(self._spec.get("nodeName") or "")

    @cached_property
    def created(self) -> str:
        """Time of the pod's creation as the API server wrote it, or an empty string."""
        return str(self.obj["metadata"].get("creationTimestamp") or "")

    @cached_property
    def deletion_time(self) -> datetime | None:
        """Time at which the pod's grace period ends, or None if the pod is not being deleted."""
        return parse_time(self.obj["metadata"].get("deletionTimestamp"))

    @cached_property
    def phase(self) -> str:
        """Phase of the pod, or an empty string."""
        return str(self._status.get("phase") or "")

    @cached_property
    def reason(self) -> str:
        """Reason in the pod's status, or an empty string."""
        return str(self._status.get("reason") or "")

    @cached_property
    def message(self) -> str:
        """Message in the pod's status, or an empty string."""
        return str(self._status.get("message") or "")

    @cached_property
    def is_leaving(self) -> bool:
        """True if the pod is being deleted."""
        return is_leaving(self.obj)

    @cached_property
    def is_ready(self) -> bool:
        """True if the pod reports Ready and is not being deleted."""
        return self._is_true("Ready") and not self.is_leaving

    @cached_property
    def log_hold_address(self) -> str | None:
        """IP address of the pod if its log hold is running, otherwise None. The log hold is a sidecar that delays the
        end of the pod until its logs are copied.
        """
        held = any(
            status["name"] == LOG_HOLD_CONTAINER and "running" in (status.get("state") or {})
            for status in self._status.get("initContainerStatuses") or []
        )
        return str(self._status.get("podIP") or "") or None if held else None

    @cached_property
    def is_ending(self) -> bool:
        """True if the pod is being deleted, or only its log hold is still running."""
        own = self._status.get("containerStatuses") or []
        has_ended = bool(own) and all("terminated" in (status.get("state") or {}) for status in own)
        may_restart = self._spec.get("restartPolicy", "Always") == "Always"
        return self.is_leaving or (has_ended and not may_restart and self.log_hold_address is not None)

    @cached_property
    def is_alive(self) -> bool:
        """True if a container that the operator created is running in the pod or may still start."""
        return not self.has_ended and not self.has_only_injected_running

    @cached_property
    def has_ended(self) -> bool:
        """True if all containers of the pod have ended, including injected ones."""
        return self.phase in ("Succeeded", "Failed")

    @cached_property
    def has_only_injected_running(self) -> bool:
        """True if the operator's containers have ended for good, but an injected container keeps the pod running."""
        policy = self._spec.get("restartPolicy", "Always")
        if self.has_ended or policy == "Always":
            return False
        own, injected = self._split(self._status.get("containerStatuses") or [])
        ends = [(status.get("state") or {}).get("terminated") for status in own]
        may_restart = policy != "Never" and any(end and end.get("exitCode", 0) != 0 for end in ends)
        is_running = any("running" in (status.get("state") or {}) for status in injected)
        return bool(ends) and all(ends) and not may_restart and is_running

    @cached_property
    def has_failed(self) -> bool:
        """True if the pod ended with an error, or if a container that the operator created ended with an error while an
        injected container is still running.
        """
        return self.phase == "Failed" or (self.has_only_injected_running and bool(self.terminations))

    @cached_property
    def is_stopped(self) -> bool:
        """True if the pod ended without an error although its restart policy is Always. This happens when its node is
        shut down.
        """
        return self.phase == "Succeeded" and self._spec.get("restartPolicy") == "Always"

    @cached_property
    def is_out_of_disk(self) -> bool:
        """True if the kubelet evicted the pod for exceeding its own ephemeral-storage limit, rather than because the
        node was full.
        """
        return self.reason == EVICTED and any(part in self.message for part in DISK_LIMIT_MESSAGES)

    @cached_property
    def is_rejected(self) -> bool:
        """True if the kubelet rejected the pod, either before it started or after the kubelet restarted."""
        return self.phase == "Failed" and self.message.startswith(REJECTED)

    @cached_property
    def is_refused_by_node(self) -> bool:
        """True if the node rejected the pod, or evicted it because the node ran low on memory, disk or process ids."""
        evicted = self.reason == EVICTED and not self.is_out_of_disk
        return self.is_rejected or (evicted and not self.is_alive)

    @cached_property
    def is_disrupted(self) -> bool:
        """True if the cluster ended the pod (eviction, preemption, node shutdown). This does not count as a crash."""
        if self.is_out_of_disk:
            return False
        return self._is_true("DisruptionTarget") or self.reason in DISRUPTION_REASONS or self.is_rejected

    @cached_property
    def is_node_silent(self) -> bool:
        """True if Kubernetes has marked the pod as not ready because its node has stopped reporting.

        A kubelet derives Ready from ContainersReady and the pod's readiness gates. If all gates are true, only the node
        controller makes Ready differ from ContainersReady.
        """
        differ = not self._is_true("Ready") and self._is_true("ContainersReady")
        return self.is_alive and differ and self.closed_gate is None

    @cached_property
    def closed_gate(self) -> str | None:
        """Kubelet's message about a readiness gate that keeps the pod unready although its containers are ready. None
        if no gate does so.
        """
        ready = self.condition("Ready")
        return str(ready.get("message") or "") if ready.get("reason") == CLOSED_GATE else None

    @cached_property
    def is_evicted_by_taint(self) -> bool:
        """True if Kubernetes deletes the pod because of a taint on its node."""
        return self.condition("DisruptionTarget").get("reason") == TAINT_EVICTION

    @cached_property
    def own_containers(self) -> list[str]:
        """Names of the containers that the operator created, init containers first, without the log hold."""
        return [entry["name"] for entry in self._split([{"name": c["name"]} for c in self._containers])[0]]

    @cached_property
    def statuses(self) -> list[Obj]:
        """Statuses of the containers that the operator created, init containers first."""
        return self._parted_statuses[0]

    @cached_property
    def injected_statuses(self) -> list[Obj]:
        """Statuses of injected containers, init containers first."""
        return self._parted_statuses[1]

    @cached_property
    def terminations(self) -> list[Termination]:
        """Latest termination with an error of each container that the operator created and that has had one."""
        ends = []
        for status in self.statuses:
            for state in (status.get("state") or {}, status.get("lastState") or {}):
                ended: Obj | None = state.get("terminated")
                if ended and ended.get("exitCode", 0) != 0:
                    ends.append(_termination(status["name"], ended))
                    break
        return ends

    def condition(self, kind: str) -> Obj:
        """Return the pod's condition of this type, or an empty object."""
        conditions: list[Obj] = self._status.get("conditions") or []
        return next((c for c in conditions if c["type"] == kind), {})

    def termination_of(self, container: str) -> Termination | None:
        """Return the termination in the current state of one of the operator's containers, or None if the container is
        running, or waits to start or restart.
        """
        for status in self.statuses:
            ended = (status.get("state") or {}).get("terminated")
            if status["name"] == container and ended:
                return _termination(container, ended)
        return None

    def image_of(self, container: str) -> str:
        """Return the image of this container, or an empty string if the pod has no such container."""
        return str(self._container(container).get("image", ""))

    def memory_limit(self, container: str) -> str:
        """Return the memory limit in this container's spec, or an empty string."""
        return str(((self._container(container).get("resources") or {}).get("limits") or {}).get("memory", ""))

    @cached_property
    def volumes(self) -> list[Obj]:
        """Volumes in the pod's spec."""
        volumes: list[Obj] = self._spec.get("volumes") or []
        return volumes

    @cached_property
    def _spec(self) -> Obj:
        spec: Obj = self.obj.get("spec") or {}
        return spec

    @cached_property
    def _status(self) -> Obj:
        status: Obj = self.obj.get("status") or {}
        return status

    @cached_property
    def _containers(self) -> list[Obj]:
        return [*(self._spec.get("initContainers") or []), *(self._spec.get("containers") or [])]

    @cached_property
    def _parted_statuses(self) -> tuple[list[Obj], list[Obj]]:
        keys = ("initContainerStatuses", "containerStatuses")
        return self._split([status for key in keys for status in self._status.get(key) or []])

    def _is_true(self, kind: str) -> bool:
        return self.condition(kind).get("status") == "True"

    def _container(self, name: str) -> Obj:
        return next((c for c in self._containers if c["name"] == name), {})

    def _split(self, statuses: Sequence[Obj]) -> tuple[list[Obj], list[Obj]]:
        """Split the statuses into those of the operator's containers and those of injected ones.

        In a pod without a role, all containers are the operator's. The log hold is in neither list, because it is not
        part of the run.
        """
        names = OWN_CONTAINERS.get(self.role)
        statuses = [status for status in statuses if status["name"] != LOG_HOLD_CONTAINER]
        own = [s for s in statuses if names is None or s["name"] in names]
        return own, [s for s in statuses if s not in own]


def relevant_pods(pods: Sequence[Pod]) -> list[Pod]:
    """Return every pod that is alive and, for each component without such a pod, the newest of its pods."""
    alive = [pod for pod in pods if pod.is_alive]
    covered = {pod.component for pod in alive}
    dead = sorted((pod for pod in pods if not pod.is_alive), key=lambda pod: pod.created)
    return [*alive, *{pod.component: pod for pod in dead if pod.component not in covered}.values()]


def _termination(name: str, ended: Mapping[str, Any]) -> Termination:
    return Termination(
        container=name,
        exit_code=int(ended.get("exitCode", 0)),
        reason=str(ended.get("reason") or ""),
        message=str(ended.get("message") or ""),
        finished_at=parse_time(ended.get("finishedAt")),
        started_at=parse_time(ended.get("startedAt")),
    )
