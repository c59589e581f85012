"""Changes of single runs, and the times at which their statuses show them."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from kubernetes import client
from rlrun.constants import ROLE_LABEL, RUN_LABEL

from bench.scale.scenarios.delays import EventDelays
from bench.scale.testbed import objects
from bench.scale.testbed.cluster import ScaleCluster, wait_for
from bench.scale.testbed.event_watch import EventWatch

SHOWN_SECONDS = 900.0
"""Deadline for a status, longer than the operator caches a response of the API server."""
TRAINER = "trainer"
Status = Mapping[str, Any]


def follow(
    cluster: ScaleCluster, namespace: str, on_status: Callable[[str, Status, float], None], *, all_runs: bool = False
) -> EventWatch:
    """Return a watch that passes on name, status and Unix time of each change of a run in a namespace.

    `all_runs` watches all namespaces, with NAMESPACE/NAME as name.
    """

    def on_event(event: str, run: dict[str, Any], now: float) -> None:
        if event != "DELETED":
            metadata = run["metadata"]
            on_status(f"{metadata['namespace']}/{metadata['name']}", run.get("status") or {}, now)

    place = "" if all_runs else f"/namespaces/{namespace}"
    return EventWatch(cluster.api, f"/{objects.RLRUNS}{place}/rlruns", on_event)


def trainer_pods(cluster: ScaleCluster, namespace: str) -> dict[str, str]:
    """Return the names of the trainers' pods by run."""
    pods = client.CoreV1Api(cluster.api).list_namespaced_pod(namespace, label_selector=f"{ROLE_LABEL}={TRAINER}")
    return {pod.metadata.labels[RUN_LABEL]: pod.metadata.name for pod in pods.items}


def crash(cluster: ScaleCluster, namespace: str, pod: str) -> float:
    """Make a trainer's container look as if it crashed once. Returns the Unix time before the change."""
    ended = {"exitCode": 1, "reason": "Error", "message": "crash", "finishedAt": "2026-01-01T00:00:00Z"}
    status = {
        "name": TRAINER,
        "image": "x",
        "imageID": "x",
        "ready": False,
        "restartCount": 1,
        "state": {"running": {}},
        "lastState": {"terminated": ended},
    }
    at = time.time()
    patch(cluster, f"/api/v1/namespaces/{namespace}/pods/{pod}/status", {"status": {"containerStatuses": [status]}})
    return at


def stop(cluster: ScaleCluster, namespace: str, run: str) -> float:
    """Stop a run. Returns the Unix time before the change."""
    at = time.time()
    patch(cluster, f"/{objects.RLRUNS}/namespaces/{namespace}/rlruns/{run}", {"spec": {"stop": True}})
    return at


def patch(cluster: ScaleCluster, path: str, changes: dict[str, Any]) -> None:
    """Change an object with a JSON merge patch."""
    cluster.api.call_api(
        path,
        "PATCH",
        body=changes,
        header_params={"Content-Type": objects.MERGE_PATCH},
        auth_settings=["BearerToken"],
        _preload_content=False,
        _return_http_data_only=True,
    )


def crash_delays(cluster: ScaleCluster, prefix: str, count: int, pause: float) -> list[float]:
    """Make trainers crash one after another. Returns the seconds until each crash was counted in a status.

    `count` is the number of crashes, at most one per run. `pause` is the time in seconds between two crashes.
    """
    delays = EventDelays()

    def on_status(run: str, status: Status, now: float) -> None:
        if status.get("restarts"):
            delays.show(run, now)

    pods = [(place, *item) for place in objects.namespaces(prefix) for item in trainer_pods(cluster, place).items()]
    # Distribute crashes evenly over the namespaces.
    chosen = pods[:: max(1, len(pods) // count)][:count]
    with follow(cluster, "", on_status, all_runs=True):
        for place, run, pod in chosen:
            delays.cause(f"{place}/{run}", time.time())
            crash(cluster, place, pod)
            time.sleep(pause)
        wait_for("the crashes in the statuses", lambda: not delays.missing, SHOWN_SECONDS, shown=lambda: delays.missing)
        return delays.until(time.time())
