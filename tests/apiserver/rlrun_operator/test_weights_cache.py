"""Claim and Job of a model with a cache on a real API server: quota, the end of the Job, and a serving pool."""

from tests.apiserver.rlrun_operator.conftest import Bench
from tests.apiserver.rlrun_operator.test_serving import create_adapter, deploy, start_pods, status, wait_for_state
from tests.support.expectations import present

BATCH, CORE, APPS = "apis/batch/v1", "api/v1", "apis/apps/v1"
PATCH = "application/merge-patch+json"
COMMIT = "1cfa9a7208912126459214e8b04321603b3df60c"
STORAGE = "requests.storage"


def set_quota(bench: Bench, storage: str) -> None:
    """Writes the status as well, which a controller does in a whole cluster."""
    path, hard = f"/{CORE}/namespaces/{bench.namespace}/resourcequotas", {STORAGE: storage}
    if bench.get(CORE, "resourcequotas", "small") is None:
        bench.call("POST", path, {"metadata": {"name": "small"}, "spec": {"hard": hard}})
    bench.call("PATCH", f"{path}/small", {"spec": {"hard": hard}}, PATCH)
    bench.call("PATCH", f"{path}/small/status", {"status": {"hard": hard, "used": {STORAGE: "0"}}}, PATCH)


def caches(bench: Bench) -> list[str]:
    return [c["metadata"]["name"] for c in bench.items(CORE, "persistentvolumeclaims")]


def end_job(bench: Bench, name: str) -> None:
    """What the Job controller writes."""
    now = "2026-01-01T00:00:00Z"
    criteria, complete = (
        {"type": kind, "status": "True", "lastTransitionTime": now, "lastProbeTime": now}
        for kind in ("SuccessCriteriaMet", "Complete")
    )
    status = {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": [criteria, complete]}
    path = f"/{BATCH}/namespaces/{bench.namespace}/jobs/{name}/status"
    bench.call("PATCH", path, {"status": status}, PATCH)


def test_a_run_waits_for_the_quota_and_for_the_download(bench: Bench) -> None:
    set_quota(bench, "1Gi")
    bench.create_model(source=f"hf://owner/model@{COMMIT}", cache={"size": "2Gi"})
    bench.create_run()
    bench.wait("the refusal", lambda: bench.condition("ChildrenApplied").get("reason") == "QuotaExceeded")
    assert f"limited: {STORAGE}=1Gi" in bench.run()["status"]["message"]
    assert (caches(bench), bench.items(APPS, "replicasets")) == ([], [])

    set_quota(bench, "9Gi")
    bench.wait("the download", lambda: bench.run()["status"]["reason"] == "WeightsDownloading")
    (name,) = caches(bench)
    assert present(bench.get(BATCH, "jobs", name))["spec"]["podReplacementPolicy"] == "Failed"
    assert bench.items(APPS, "replicasets") == []

    end_job(bench, name)
    bench.wait("the pods", lambda: len(bench.items(APPS, "replicasets")) == 3)
    # A status follows the children of its plan.
    bench.wait("the condition", lambda: bench.condition("WeightsCached").get("status") == "True")


def test_a_serving_pool_waits_for_the_download(bench: Bench) -> None:
    bench.create_model(source=f"hf://owner/model@{COMMIT}", cache={"size": "2Gi"})
    create_adapter(bench, "first")
    deploy(bench, "first")
    told = "WeightsDownloading: "
    bench.wait("the download", lambda: status(bench, "first").get("deploymentMessage", "").startswith(told))
    (name,) = caches(bench)
    assert (status(bench, "first")["deploymentState"], bench.items(APPS, "deployments")) == ("Deploying", [])

    end_job(bench, name)
    start_pods(bench)
    wait_for_state(bench, "first", "Deployed")
    (deployment,) = bench.items(APPS, "deployments")
    (volume,) = (v for v in deployment["spec"]["template"]["spec"]["volumes"] if v["name"] == "models")
    assert volume["persistentVolumeClaim"] == {"claimName": name, "readOnly": True}
