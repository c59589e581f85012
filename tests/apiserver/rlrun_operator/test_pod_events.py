"""A pod whose containers are not created, against a real API server: its Events say why."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.apiserver.rlrun_operator.conftest import Bench
from tests.apiserver.rlrun_operator.test_operator import BATCH
from tests.support.expectations import present

Obj = dict[str, Any]
TRAINER = "reverse-trainer-0"
WORDS = 'MountVolume.SetUp failed for volume "s3" : secret "x" not found'


def creating(bench: Bench, pod: str, seconds: float) -> Obj:
    """The kubelet has had the pod for some time and created no container."""
    since = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
    status = {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": since},
            {"type": "Ready", "status": "False"},
        ],
        "containerStatuses": [bench.container("trainer", {"waiting": {"reason": "ContainerCreating"}})],
    }
    path = f"/api/v1/namespaces/{bench.namespace}/pods/{pod}/status"
    return bench.call("PATCH", path, {"status": status}, "application/merge-patch+json")


def tell(bench: Bench, pod: Obj, name: str, reason: str, message: str, kind: str = "Warning") -> None:
    """The kubelet writes an Event about the pod."""
    metadata = pod["metadata"]
    about = {"kind": "Pod", "namespace": bench.namespace, "name": metadata["name"], "uid": metadata["uid"]}
    now = datetime.now(UTC).isoformat()
    body = {
        "metadata": {"name": name},
        "involvedObject": {"apiVersion": "v1", **about},
        **{"reason": reason, "message": message, "type": kind},
        **{"firstTimestamp": now, "lastTimestamp": now, "count": 1, "source": {"component": "kubelet"}},
    }
    bench.call("POST", f"/api/v1/namespaces/{bench.namespace}/events", body)


def test_the_newest_event_of_a_pod_without_containers_is_shown(bench: Bench) -> None:
    bench.create_model()
    bench.create_run()
    bench.wait("children", lambda: bench.get(BATCH, "jobs", "reverse-orchestrator-a1"))
    bench.make_pods()
    bench.bind(TRAINER)
    other = present(bench.get("api/v1", "pods", "reverse-inference-0"))
    pod = creating(bench, TRAINER, 60)
    tell(bench, pod, "of-this-pod", "FailedMount", WORDS)
    tell(bench, other, "of-another-pod", "FailedCreatePodSandBox", "no network")
    condition = bench.wait(
        "the reason",
        lambda: (found := bench.condition("TrainerReady")).get("reason") == "VolumeMountFailed" and found,
    )
    assert WORDS in condition["message"]
    assert (bench.run()["status"]["phase"], bench.run()["status"]["reason"]) == ("Pending", "VolumeMountFailed")
