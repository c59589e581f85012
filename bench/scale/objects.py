"""Objects that the benchmark creates: runs, and bare Jobs with as many pods."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kubernetes import client
from rlrun.constants import FINALIZER

from bench.scale.cluster import MODEL, RUNS

CREATORS = 8
PODS_PER_RUN = 4
TENANTS = 10


def namespaces(prefix: str) -> list[str]:
    """Return the names of the tenants' namespaces."""
    return [f"{prefix}-{index}" for index in range(TENANTS)]


def create_namespaces(api: client.ApiClient, prefix: str) -> list[str]:
    """Create the tenants' namespaces."""
    core, names = client.CoreV1Api(api), namespaces(prefix)
    for name in names:
        core.create_namespace({"metadata": {"name": name}})
    return names


def create_runs(api: client.ApiClient, prefix: str, count: int) -> None:
    """Create runs in the tenants' namespaces, several at a time."""
    objects, names = client.CustomObjectsApi(api), namespaces(prefix)
    _side_by_side(
        lambda index: objects.create_namespaced_custom_object(*RUNS, names[index % TENANTS], "rlruns", run(index)),
        range(count),
    )


def create_finished_runs(api: client.ApiClient, prefix: str, count: int) -> None:
    """Create runs that have ended: nothing is to be done about them."""
    objects, names = client.CustomObjectsApi(api), namespaces(prefix)

    def create(index: int) -> None:
        place = names[index % TENANTS]
        body = run(index, "finished")
        # Else the operator would write it.
        body["metadata"]["finalizers"] = [FINALIZER]
        made = objects.create_namespaced_custom_object(*RUNS, place, "rlruns", body)
        body = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "status": FINISHED}
        objects.patch_namespaced_custom_object_status(*RUNS, place, "rlruns", made["metadata"]["name"], body)

    _side_by_side(create, range(count))


def create_jobs(api: client.ApiClient, prefix: str, count: int) -> None:
    """Create Jobs of one pod each in the tenants' namespaces, several at a time."""
    batch, names = client.BatchV1Api(api), namespaces(prefix)
    _side_by_side(lambda index: batch.create_namespaced_job(names[index % TENANTS], job(index)), range(count))


def run(index: int, prefix: str = "run") -> dict[str, Any]:
    """Return a run with one environment."""
    spec = {"model": MODEL, "maxSteps": 1000, "sampling": {"maxTokens": 8}, "env": [{"id": "bench/none"}]}
    metadata = {"name": f"{prefix}-{index}"}
    return {"apiVersion": "/".join(RUNS), "kind": "RLRun", "metadata": metadata, "spec": spec}


def job(index: int) -> dict[str, Any]:
    """Return a Job of one pod."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "bench/none"}]}
    metadata = {"name": f"job-{index}"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": pod}}}


FINISHED = {
    "phase": "Completed",
    "observedGeneration": 1,
    "attempt": 1,
    "startTime": "2026-01-01T00:00:00Z",
    "attemptStartTime": "2026-01-01T00:00:00Z",
    "completionTime": "2026-01-01T01:00:00Z",
    "progress": {"step": 1000, "maxSteps": 1000},
}


def _side_by_side(create: Callable[[int], Any], indexes: Iterable[int]) -> None:
    with ThreadPoolExecutor(CREATORS) as pool:
        list(pool.map(create, indexes))
