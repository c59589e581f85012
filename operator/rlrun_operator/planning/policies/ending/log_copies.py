"""Selection of the container logs to copy to S3, since Kubernetes deletes a pod's logs with the pod.

The operator copies the logs of all containers before it deletes pods, the log of a container that crashed, and the logs
of pods that others delete.
"""

from collections.abc import Iterable, Sequence

from rlrun.kube.objects import Obj, attempt_of
from rlrun.kube.pods import container_statuses
from rlrun.storage.layout import RunLayout
from rlrun.storage.stored_logs import MAIN_CONTAINERS

from rlrun_operator.planning.diagnosis.crash_counter import Crash
from rlrun_operator.planning.plan.actions import LogCopy


def pod_logs(layout: RunLayout, pods: Iterable[Obj]) -> list[LogCopy]:
    """Return copies of the logs of all containers that have started, those that users read first."""
    copies = [_copy(layout, pod, status) for pod in pods for status in container_statuses(pod) if _started(status)]
    return sorted(copies, key=lambda copy: copy.container not in MAIN_CONTAINERS.values())


def crash_logs(layout: RunLayout, attempt: int, crashes: Sequence[Crash]) -> list[LogCopy]:
    """Return copies of the logs of crashed containers."""
    copies = {
        str(uri): LogCopy(c.pod, c.container, str(uri), c.restarted)
        for c in crashes
        if c.pod and c.container and (uri := layout.log(attempt, c.pod, c.container, previous=c.restarted))
    }
    return list(copies.values())


def _copy(layout: RunLayout, pod: Obj, status: Obj) -> LogCopy:
    name, container = pod["metadata"]["name"], status["name"]
    uri = str(layout.log(attempt_of(pod), name, container))
    return LogCopy(name, container, uri, is_complete=_ended(status))


def _state(status: Obj) -> Obj:
    return status.get("state") or {}


def _ended(status: Obj) -> bool:
    return bool(_state(status).get("terminated"))


def _started(status: Obj) -> bool:
    return "running" in _state(status) or _ended(status) or bool((status.get("lastState") or {}).get("terminated"))
