"""Objects that the benchmark creates: runs, and bare Jobs with as many pods. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from rlrun.constants import Role

from bench.scale.testbed.bulk import Call

RUNS = ("rlrun.dev", "v1alpha1")
MODEL = "bench/many"
PODS_PER_RUN = len(Role)
TENANTS = 10
MERGE_PATCH = "application/merge-patch+json"

JOBS = "apis/batch/v1"
RLRUNS = "apis/rlrun.dev/v1alpha1"

TINY_POD: dict[str, Any] = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "bench/none"}]}

Chains = Iterator[Sequence[Call]]


def namespaces(prefix: str) -> list[str]:
    """Return the names of the tenants' namespaces."""
    return [f"{prefix}-{index}" for index in range(TENANTS)]


def new_namespaces(names: Sequence[str]) -> Chains:
    """Return the requests that create these namespaces."""
    return ([Call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})] for name in names)


def runs(prefix: str, count: int) -> Chains:
    """Return the requests that create runs, distributed over the tenants' namespaces."""
    return (
        [Call("POST", f"/{RLRUNS}/namespaces/{place_of(prefix, index)}/rlruns", run(index))] for index in range(count)
    )


def finished_runs(prefix: str, count: int, template: dict[str, Any]) -> Chains:
    """Return the requests that create runs that ended long ago.

    `template` is a finished run for which the operator has no work left, so that it has none for the copies either.
    """
    kept = {key: template["metadata"].get(key) or {} for key in ("labels", "annotations")}
    finalizers = template["metadata"].get("finalizers") or []
    # A copy is created unchanged, in its first generation, whereas the template was changed once.
    conditions = [{**condition, "observedGeneration": 1} for condition in template["status"].get("conditions") or []]
    status = {**template["status"], **LONG_AGO, "conditions": conditions}

    def end(made: dict[str, Any]) -> dict[str, Any]:
        # The write conflicts if an operator has written the run since its creation.
        return {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "status": status}

    for index in range(count):
        metadata = {**kept, "name": f"finished-{index}", "finalizers": finalizers}
        body = {**run(index), "metadata": metadata, "spec": template["spec"]}
        path = f"/{RLRUNS}/namespaces/{place_of(prefix, index)}/rlruns"
        place = f"{path}/{metadata['name']}/status"
        yield [Call("POST", path, body), Call("PATCH", place, None, MERGE_PATCH, end)]


def jobs(prefix: str, count: int, pods: Sequence[dict[str, Any]] = (TINY_POD,)) -> Chains:
    """Return the requests that create Jobs with one pod each, using these pod specs in turn."""
    for index in range(count):
        path = f"/{JOBS}/namespaces/{place_of(prefix, index)}/jobs"
        yield [Call("POST", path, job(index, pods[index % len(pods)]))]


def deletions(prefix: str, api: str, plural: str) -> Chains:
    """Return the requests that delete all objects of a kind in the tenants' namespaces, and their dependents."""
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    return ([Call("DELETE", f"/{api}/namespaces/{name}/{plural}", options)] for name in namespaces(prefix))


def place_of(prefix: str, index: int) -> str:
    """Return the namespace for the object with this number."""
    return f"{prefix}-{index % TENANTS}"


def run(index: int, prefix: str = "run") -> dict[str, Any]:
    """Return a run with one environment. No checkpoint is due before its end, because nothing would upload it."""
    spec: dict[str, Any] = {"model": MODEL, "maxSteps": 1000, "sampling": {"maxTokens": 8}}
    spec |= {"env": [{"id": "bench/none"}], "checkpoints": {"interval": 1000}}
    metadata = {"name": f"{prefix}-{index}"}
    return {"apiVersion": "/".join(RUNS), "kind": "RLRun", "metadata": metadata, "spec": spec}


def job(index: int, pod: dict[str, Any]) -> dict[str, Any]:
    """Return a Job of one pod with this spec."""
    metadata = {"name": f"job-{index}"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": pod}}}


def pod_of_job(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a run's pod, changed for a Job in another namespace to use that namespace's service
    account.
    """
    kept = {key: value for key, value in pod.items() if key != "serviceAccount"}
    return {**kept, "serviceAccountName": "default", "restartPolicy": "Never"}


def model() -> dict[str, Any]:
    """Return the RLModel of all runs."""
    none: dict[str, Any] = {"gpus": 0}
    spec = {"id": MODEL, "source": "s3://rlrun/models/none", "seqLen": 256, "trainer": none, "inference": none}
    return {"apiVersion": "/".join(RUNS), "kind": "RLModel", "metadata": {"name": "bench-many"}, "spec": spec}


LONG_AGO = {
    "observedGeneration": 1,
    "startTime": "2026-01-01T00:00:00Z",
    "attemptStartTime": "2026-01-01T00:00:00Z",
    "completionTime": "2026-01-01T01:00:00Z",
}
"""Status of a run that ended so long ago that a new operator handles it with low priority."""
