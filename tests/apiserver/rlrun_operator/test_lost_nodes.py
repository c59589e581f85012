"""A node that stops to answer, with Kubernetes' own controllers: its objects stay, and no kubelet ends its pods."""

import secrets
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from local_cluster.control_plane.without_nodes import GARBAGE_COLLECTION, ControlPlane
from tests.apiserver.rlrun_operator.conftest import Bench, Orchestrators, make_home, write_settings
from tests.support.crds import install_crds
from tests.support.expectations import present
from tests.support.seaweedfs import S3Server

Obj = dict[str, Any]
BATCH, PODS = "apis/batch/v1", "api/v1"
CONTROLLERS = (
    *GARBAGE_COLLECTION,
    "job-controller",
    "replicaset-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
)
LOST, OTHER = "gpu-7", "gpu-8"
HEARTBEAT_SECONDS = 1.0
JOB = "reverse-orchestrator-a1"


class Heartbeats:
    """Kubelets as far as the controller of nodes knows them: they report that their nodes are ready."""

    def __init__(self, api: client.ApiClient) -> None:
        self._core = client.CoreV1Api(api)
        self._stopped = threading.Event()
        self.nodes = [LOST, OTHER]
        for name in self.nodes:
            self._core.create_node({"metadata": {"name": name}})
        self._thread = threading.Thread(target=self._report, daemon=True)

    def _report(self) -> None:
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            for name in list(self.nodes):
                now = datetime.now(UTC).isoformat()
                ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}
                with suppress(client.ApiException):  # The next one comes soon.
                    self._core.patch_node_status(name, {"status": {"conditions": [ready]}})

    def __enter__(self) -> "Heartbeats":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(10)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane with the controllers that make and evict pods, in seconds instead of minutes."""
    with ControlPlane(
        controllers=CONTROLLERS,
        api_server_flags=["--default-not-ready-toleration-seconds=5", "--default-unreachable-toleration-seconds=5"],
        controller_manager_flags=["--node-monitor-period=1s", "--node-monitor-grace-period=10s"],
    ) as started:
        install_crds(config.new_client_from_config(str(started.kubeconfig)))
        yield started


@pytest.fixture(scope="module")
def s3_server(s3_server: S3Server) -> S3Server:
    """The S3 of all tests with a bucket of this cluster's own: the bucket's mark names one cluster."""
    return s3_server.with_bucket(f"lost-nodes-{secrets.token_hex(4)}")


@pytest.fixture
def bench(plane: ControlPlane, s3_server: S3Server, orchestrators: Orchestrators, tmp_path: Path) -> Iterator[Bench]:
    api = config.new_client_from_config(str(plane.kubeconfig))
    home = make_home(api, s3_server)
    settings = write_settings(tmp_path / "settings.yaml", plane, s3_server, orchestrators, [home])
    found = Bench(api, home, settings, tmp_path, s3_server, orchestrators)
    yield found
    for process in found.processes:
        process.kill()


def start_pods(bench: Bench, node: str) -> bool:
    """Play scheduler and kubelet of the node for the pods without one. Returns whether all four roles are ready."""
    ready = set()
    for pod in bench.items(PODS, "pods"):
        name, role = pod["metadata"]["name"], pod["metadata"]["labels"]["rlrun.dev/role"]
        if pod["metadata"].get("deletionTimestamp"):
            continue
        if not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            bench.call("POST", f"/api/v1/namespaces/{bench.namespace}/pods/{name}/binding", body)
            conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady")]
            path = f"/api/v1/namespaces/{bench.namespace}/pods/{name}/status"
            status = {"phase": "Running", "conditions": conditions}
            bench.call("PATCH", path, {"status": status}, "application/merge-patch+json")
        ready.add(role)
    return len(ready) == 4


def orchestrator_pods(bench: Bench) -> list[Obj]:
    return [p for p in bench.items(PODS, "pods") if p["metadata"]["labels"]["rlrun.dev/role"] == "orchestrator"]


def is_evicted(bench: Bench) -> bool:
    lost = [p for p in bench.items(PODS, "pods") if p["spec"].get("nodeName") == LOST]
    return len(lost) == 4 and all(p["metadata"].get("deletionTimestamp") for p in lost)


def test_a_run_goes_on_after_its_node_stops_to_answer(bench: Bench) -> None:
    with Heartbeats(bench.api) as heartbeats:
        bench.start_operator()
        bench.create_model()
        bench.create_run()
        bench.wait("the pods", lambda: start_pods(bench, LOST))
        bench.tell(step=3)
        bench.wait("Running", lambda: bench.phase() == "Running")
        job = present(bench.get(BATCH, "jobs", JOB))

        heartbeats.nodes.remove(LOST)
        del bench.orchestrators.answers[bench.namespace, "reverse"]
        # The controller marks one pod after the other, and each mark may be a status of its own.
        for kind in ("OrchestratorReady", "TrainerReady"):
            bench.wait(f"the node in {kind}", lambda kind=kind: LOST in bench.condition(kind).get("message", ""))
        assert bench.condition("OrchestratorReady")["reason"] == "NodeUnreachable"

        bench.wait("the eviction", lambda: is_evicted(bench))
        (lost,) = orchestrator_pods(bench)
        for pod in bench.items(PODS, "pods"):
            if pod["spec"].get("nodeName") == LOST:
                # The pods' own grace periods last a minute and more.
                path = f"/api/v1/namespaces/{bench.namespace}/pods/{pod['metadata']['name']}"
                bench.call("DELETE", path, {"gracePeriodSeconds": 1})

        def replaced() -> bool:
            found = bench.get(BATCH, "jobs", JOB)
            return found is not None and found["metadata"]["uid"] != job["metadata"]["uid"]

        bench.wait("another Job", replaced)
        assert lost["metadata"]["name"] not in [p["metadata"]["name"] for p in orchestrator_pods(bench)]
        bench.wait("the other node's pods", lambda: start_pods(bench, OTHER))
        bench.wait(
            "the end of the lost pods",
            lambda: all(p["spec"].get("nodeName") != LOST for p in bench.items(PODS, "pods")),
        )
        bench.tell(step=4)
        bench.wait("the next step", lambda: bench.run()["status"]["progress"]["step"] == 4)
        bench.wait("its end in the status", lambda: bench.condition("OrchestratorReady")["status"] == "True")
        assert bench.run()["status"]["attempt"] == 1
        assert "LostPodDeleted" in [e["reason"] for e in bench.items(PODS, "events")]
