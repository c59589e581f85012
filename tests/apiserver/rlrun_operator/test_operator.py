"""The operator's process against a real API server: what a user sees, and what must not change behind their back."""

import json
import time
from typing import Any

import pytest
from kubernetes import client

from tests.apiserver.rlrun_operator.conftest import RESYNC_SECONDS, Bench

APPS, BATCH, CORE, NET = "apis/apps/v1", "apis/batch/v1", "api/v1", "apis/networking.k8s.io/v1"
RLRUN = "apis/rlrun.dev/v1alpha1"


def versions(bench: Bench) -> dict[str, str]:
    found = {}
    for api, plural in (
        (APPS, "replicasets"),
        (BATCH, "jobs"),
        (CORE, "services"),
        (CORE, "configmaps"),
        (CORE, "secrets"),
        (CORE, "serviceaccounts"),
        (NET, "networkpolicies"),
    ):
        for obj in bench.items(api, plural):
            if (obj["metadata"].get("labels") or {}).get("rlrun.dev/run"):
                found[f"{plural}/{obj['metadata']['name']}"] = obj["metadata"]["resourceVersion"]
    return found


def started(bench: Bench, **spec: Any) -> None:
    bench.create_model()
    bench.create_run(**spec)
    bench.wait("children", lambda: bench.get(BATCH, "jobs", "reverse-orchestrator-a1"))
    bench.make_pods()
    bench.tell(step=1, reward=0.25)
    bench.wait("Running", lambda: bench.phase() == "Running")


def test_life_of_a_run(own_bench: Bench) -> None:
    bench = own_bench
    bench.start_operator()
    started(bench)
    assert len(bench.items(APPS, "replicasets")) == 3
    assert len(bench.items(NET, "networkpolicies")) == 2
    assert bench.condition("Validated")["status"] == "True"

    bench.upload("checkpoint", 5)
    bench.wait("a checkpoint", lambda: bench.items(RLRUN, "rlcheckpoints"))
    bench.wait(
        "its readiness",
        lambda: bench.items(RLRUN, "rlcheckpoints")[0].get("status", {}).get("phase") == "Ready",
    )
    packages = [{"id": "rlrun/reverse-text", "version": "1.0", "digest": f"sha256:{'a' * 64}"}]
    bench.tell(step=10, reward=0.9, environments=packages)
    bench.wait("step 10", lambda: bench.run()["status"]["progress"]["step"] == 10)
    assert bench.run()["status"]["environments"] == packages

    bench.upload("checkpoint", 10)
    bench.upload("adapter", 10)
    last = {"phase": "Completed", "step": 10, "maxSteps": 10, "reward": 0.9}
    bench.set_pod("reverse-orchestrator-a1-0", phase="Succeeded", statuses=[ended("orchestrator", 0, last)])
    bench.wait("Completed", lambda: bench.phase() == "Completed")
    assert [o["spec"]["step"] for o in bench.items(RLRUN, "rladapters")] == [10]
    assert bench.items(APPS, "replicasets") == []
    bench.wait("the end of all other children", lambda: list(versions(bench)) == ["jobs/reverse-orchestrator-a1"])
    before = versions(bench)
    bench.wait_until_unchanged(RESYNC_SECONDS + 1)
    assert versions(bench) == before
    reasons = {e["reason"] for e in bench.items(CORE, "events")}
    assert {"Pending", "Running", "Completed", "CheckpointReady"} <= reasons

    bench.delete_run()
    bench.wait("children gone", lambda: not versions(bench))
    assert len(bench.items(RLRUN, "rlcheckpoints")) == 2, "artifacts outlive their run with artifactPolicy Retain"


def test_steady_state_writes_nothing(own_bench: Bench) -> None:
    own_bench.start_operator()
    started(own_bench)
    own_bench.wait_until_unchanged(RESYNC_SECONDS + 1)


def test_second_operator_takes_over_and_changes_nothing(own_bench: Bench) -> None:
    bench = own_bench
    first = bench.start_operator()
    started(bench)
    before = versions(bench)
    assert len(before) > 12
    second = bench.start_operator()
    holder = lease(bench)
    bench.wait("the second to stand by", lambda: "serving /healthz" in second.log.read_text())
    time.sleep(3)
    assert (first.running, second.running, lease(bench)) == (True, True, holder)
    first.kill()
    bench.tell(step=7)
    bench.wait("takeover", lambda: bench.run()["status"]["progress"]["step"] == 7)
    assert lease(bench) != holder
    assert versions(bench) == before
    assert second.terminate() == 0
    assert not lease(bench)


def test_operator_exits_when_another_holder_takes_its_lease(own_bench: Bench) -> None:
    bench = own_bench
    process = bench.start_operator()
    bench.wait("a lease", lambda: lease(bench))
    path = f"/apis/coordination.k8s.io/v1/namespaces/{bench.namespace}/leases/rlrun-operator"
    thief = {"spec": {"holderIdentity": "thief", "renewTime": "2026-01-01T00:00:00.000000Z"}}
    bench.call("PATCH", path, thief, "application/merge-patch+json")
    bench.wait("the end of the process", lambda: not process.running)
    assert process.exit_code == 1
    assert lease(bench) == "thief"


def test_missing_model_is_reported_until_it_is_created(bench: Bench) -> None:
    bench.create_run()
    bench.wait("the reason", lambda: bench.condition("Validated").get("reason") == "ModelNotFound")
    bench.create_model()
    bench.wait("children", lambda: bench.items(APPS, "replicasets"))


@pytest.mark.proves("suspend", "stop")
def test_suspend_resume_and_stop(own_bench: Bench) -> None:
    bench = own_bench
    bench.start_operator()
    started(bench)
    bench.change_run(suspend=True)
    bench.wait("no workloads", lambda: not bench.items(APPS, "replicasets") and not bench.items(BATCH, "jobs"))
    bench.wait("Suspended", lambda: bench.phase() == "Suspended")
    # No kubelet confirms the end of pods here.
    bench.call("DELETE", f"/api/v1/namespaces/{bench.namespace}/pods", {"gracePeriodSeconds": 0})
    bench.wait("no children", lambda: not versions(bench))
    bench.wait_until_unchanged(RESYNC_SECONDS + 1)
    bench.change_run(suspend=False)
    bench.wait("second attempt", lambda: bench.get(BATCH, "jobs", "reverse-orchestrator-a2"))
    assert len(versions(bench)) > 12, "children that were deleted are made again"
    bench.make_pods()
    bench.wait("Running again", lambda: bench.phase() == "Running")
    assert bench.run()["status"]["attempt"] == 2
    bench.change_run(stop=True)
    bench.wait("Stopped", lambda: bench.phase() == "Stopped")
    bench.wait("no workloads", lambda: not bench.items(APPS, "replicasets") and not bench.items(BATCH, "jobs"))
    bench.wait("no children", lambda: not versions(bench))
    assert bench.phase() == "Stopped"


def test_deletion_with_artifacts(bench: Bench) -> None:
    bench.create_model()
    bench.create_run(artifactPolicy="Delete")
    bench.wait("children", lambda: bench.get(BATCH, "jobs", "reverse-orchestrator-a1"))
    bench.wait("finalizer", lambda: bench.run()["metadata"].get("finalizers") == ["rlrun.dev/artifacts"])
    uri = bench.upload("checkpoint", 3)
    bench.wait("a checkpoint", lambda: bench.items(RLRUN, "rlcheckpoints"))
    bench.delete_run()
    bench.wait("the run's end", lambda: not bench.run())
    assert bench.s3.store().read_manifest(uri) is None
    bench.wait("checkpoints gone", lambda: not bench.items(RLRUN, "rlcheckpoints"))


@pytest.mark.proves("checkpoints.keepCloud")
def test_retention(bench: Bench) -> None:
    bench.create_model()
    bench.create_run(checkpoints={"keepCloud": 2})
    bench.wait("children", lambda: bench.get(BATCH, "jobs", "reverse-orchestrator-a1"))
    uris = [bench.upload("checkpoint", step) for step in (1, 2, 3, 4)]
    store = bench.s3.store()
    bench.wait("retention", lambda: store.read_manifest(uris[1]) is None)
    bench.wait("objects", lambda: [o["spec"]["step"] for o in bench.items(RLRUN, "rlcheckpoints")] == [3, 4])
    assert store.read_manifest(uris[2])


def test_deleted_pod_is_a_restart(bench: Bench) -> None:
    started(bench)
    client.CoreV1Api(bench.api).delete_namespaced_pod(
        "reverse-trainer-0", bench.namespace, body=client.V1DeleteOptions(grace_period_seconds=0)
    )
    bench.wait("the restart", lambda: bench.run()["status"].get("restarts") == 1)
    bench.make_pods()
    bench.wait("the trainer", lambda: bench.condition("TrainerReady").get("status") == "True")
    assert bench.run()["status"]["restarts"] == 1


def lease(bench: Bench) -> Any:
    items = bench.call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{bench.namespace}/leases")["items"]
    return items[0]["spec"].get("holderIdentity") if items else None


def ended(container: str, code: int, message: Any) -> dict[str, Any]:
    return {
        "name": container,
        "image": "x",
        "imageID": "x",
        "ready": False,
        "restartCount": 0,
        "state": {
            "terminated": {
                "exitCode": code,
                "reason": "Completed",
                "message": json.dumps(message),
                "finishedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
        },
    }


def test_a_model_shows_how_many_runs_use_it(bench: Bench) -> None:
    started(bench)
    path = f"/apis/rlrun.dev/v1alpha1/rlmodels/{bench.namespace}"
    bench.wait("the number of runs", lambda: bench.call("GET", path).get("status", {}).get("runs") == 1)
    model = bench.call("GET", path)
    assert model["status"]["observedGeneration"] == model["metadata"]["generation"]
    assert [(c["type"], c["status"]) for c in model["status"]["conditions"]] == [
        ("Validated", "True"),
        ("PodTemplateValid", "True"),
    ]
    bench.change_run(stop=True)
    bench.wait("no run", lambda: bench.call("GET", path)["status"]["runs"] == 0)
