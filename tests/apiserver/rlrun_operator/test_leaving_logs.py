"""Logs of pods that others delete are in S3, also of those that were leaving before the operator led."""

import uuid
from collections.abc import Iterator

import pytest
from kubernetes import client
from rlrun.constants import ATTEMPT_LABEL, FIELD_MANAGER, MANAGED_BY_LABEL, ROLE_LABEL, RUN_LABEL, RUN_UID_LABEL
from rlrun.storage.errors import NotFound
from rlrun.storage.layout import RunLayout

from local_cluster.control_plane.without_nodes import ControlPlane
from tests.apiserver.rlrun_operator.conftest import Bench
from tests.support.log_kubelet import LogKubelet, log_kubelet

LABELS = {
    MANAGED_BY_LABEL: FIELD_MANAGER,
    RUN_LABEL: "reverse",
    RUN_UID_LABEL: "uid-1",
    ROLE_LABEL: "trainer",
    ATTEMPT_LABEL: "1",
}


@pytest.fixture
def kubelet(api: client.ApiClient, control_plane: ControlPlane) -> Iterator[LogKubelet]:
    with log_kubelet(api, control_plane.state, f"node-{uuid.uuid4().hex[:8]}") as found:
        yield found


def test_pods_that_others_delete_leave_their_logs(own_bench: Bench, kubelet: LogKubelet) -> None:
    bench = own_bench
    layout = RunLayout.of(bench.s3.bucket, "", bench.namespace, "uid-1")

    def delete(name: str) -> None:
        bench.call("DELETE", f"/api/v1/namespaces/{bench.namespace}/pods/{name}")

    def kept(name: str) -> bytes | None:
        try:
            return bench.s3.store().get_bytes(layout.log(1, name, "trainer"), 1000)
        except NotFound:
            return None

    client.CoreV1Api(bench.api).create_namespaced_service_account(bench.namespace, {"metadata": {"name": "default"}})
    for name in ("early", "late"):
        spec = {
            "nodeName": kubelet.node,
            "automountServiceAccountToken": False,
            "containers": [{"name": "trainer", "image": "x"}],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": LABELS}, "spec": spec}
        bench.call("POST", f"/api/v1/namespaces/{bench.namespace}/pods", pod)
        bench.set_pod(name, statuses=[bench.container("trainer", {"running": {}})])
        kubelet.logs[name] = f"2026-01-01T00:00:00Z log of {name}\n"
    delete("early")
    operator = bench.start_operator()
    bench.wait("the log of the pod that was leaving before", lambda: kept("early") == b"log of early\n")
    assert kept("late") is None

    delete("late")
    bench.wait("the log of the other", lambda: kept("late") == b"log of late\n")
    kubelet.logs["late"] += "2026-01-01T00:00:01Z the end\n"
    ended = {"terminated": {"exitCode": 0, "containerID": "containerd://x"}}
    bench.set_pod("late", phase="Succeeded", statuses=[bench.container("trainer", ended)])
    bench.wait("the end of the log", lambda: kept("late") == b"log of late\nthe end\n")
    assert operator.terminate() == 0
