"""Selection of the container logs to copy to S3, since Kubernetes deletes a pod's logs with the pod.

The operator copies the logs of all containers before it deletes pods, the log of a container that crashed, and, while a
pod terminates, the logs of its containers that have ended.
"""

from collections.abc import Iterable, Sequence

from rlrun.kube.objects import Obj, attempt_of
from rlrun.kube.pods import container_statuses, is_leaving
from rlrun.storage.layout import RunLayout

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.diagnosis.crash_counter import Crash
from rlrun_operator.planning.plan.actions import LogCopy, PlanPart
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.resources.platform import run_layout


def pod_logs(layout: RunLayout, pods: Iterable[Obj]) -> list[LogCopy]:
    """Return copies of the logs of all containers that have started."""
    return [
        _copy(layout, pod, status["name"]) for pod in pods for status in container_statuses(pod) if _started(status)
    ]


def copy_ended_logs(observation: RunObservation, settings: OperatorSettings) -> PlanPart:
    """Copy the logs of ended containers in pods that are being deleted."""
    layout = run_layout(settings, observation.namespace, observation.uid)
    leaving = [pod for pod in observation.own_pods if is_leaving(pod)]
    copies = [_copy(layout, pod, s["name"]) for pod in leaving for s in container_statuses(pod) if _ended(s)]
    return PlanPart(logs=tuple(copies))


def crash_logs(layout: RunLayout, attempt: int, crashes: Sequence[Crash]) -> list[LogCopy]:
    """Return copies of the logs of crashed containers."""
    copies = {
        str(uri): LogCopy(c.pod, c.container, str(uri), c.restarted)
        for c in crashes
        if c.pod and c.container and (uri := layout.log(attempt, c.pod, c.container, previous=c.restarted))
    }
    return list(copies.values())


def _copy(layout: RunLayout, pod: Obj, container: str) -> LogCopy:
    name = pod["metadata"]["name"]
    return LogCopy(name, container, str(layout.log(attempt_of(pod), name, container)))


def _state(status: Obj) -> Obj:
    return status.get("state") or {}


def _ended(status: Obj) -> bool:
    return bool(_state(status).get("terminated"))


def _started(status: Obj) -> bool:
    return "running" in _state(status) or _ended(status) or bool((status.get("lastState") or {}).get("terminated"))
