"""Logs and live streams at a real API server: rights on pods, what it asks of a kubelet, and what arrives."""

import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from kubernetes import client
from rlrun.kube.pod_logs import DEFAULT_CONTAINER

from local_cluster.control_plane.without_nodes import ControlPlane
from tests.apiserver.rlrun_server.test_rest_api import bearer, own_configuration, rest, roles, until
from tests.apiserver.rlrun_server.test_users import Accounts
from tests.support.log_kubelet import LogKubelet, log_kubelet
from tests.support.open_stream import open_stream
from tests.support.rest_api import SPEC

__all__ = ["own_configuration", "rest", "roles"]
READ_PODS = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
]
LINES = "2026-01-01T00:00:01.5Z INFO began\n2026-01-01T00:00:02.25Z ERROR broken\n"


@pytest.fixture
def kubelet(api: client.ApiClient, control_plane: ControlPlane) -> Iterator[LogKubelet]:
    with log_kubelet(api, control_plane.state, f"node-{uuid.uuid4().hex[:8]}") as found:
        yield found


@pytest.fixture
def reader(api: client.ApiClient, namespace: str, roles: dict[str, str]) -> dict[str, str]:
    """Headers of a viewer who may also read pods, as with the cluster's own role `view`."""
    accounts = Accounts(api)
    token = accounts.make(namespace, "rita", roles["viewer"])
    role = f"pods-{uuid.uuid4().hex[:6]}"
    client.RbacAuthorizationV1Api(api).create_cluster_role({"metadata": {"name": role}, "rules": READ_PODS})
    binding = {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "rita", "namespace": namespace}],
    }
    client.RbacAuthorizationV1Api(api).create_namespaced_role_binding(namespace, binding)
    return bearer(token)


def make_run(api: client.ApiClient, namespace: str) -> dict[str, Any]:
    body = {"apiVersion": "rlrun.dev/v1alpha1", "kind": "RLRun", "metadata": {"name": "first"}, "spec": SPEC}
    runs = client.CustomObjectsApi(api)
    made: dict[str, Any] = runs.create_namespaced_custom_object("rlrun.dev", "v1alpha1", namespace, "rlruns", body)
    return made


def make_pod(api: client.ApiClient, namespace: str, run: dict[str, Any], node: str) -> None:
    labels = {
        "rlrun.dev/run": "first",
        "rlrun.dev/run-uid": run["metadata"]["uid"],
        "rlrun.dev/role": "orchestrator",
        "rlrun.dev/attempt": "1",
    }
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": str(uuid.uuid4()), "controller": True}
    pod = {
        "metadata": {
            "name": "first-orchestrator-x",
            "labels": labels,
            "annotations": {DEFAULT_CONTAINER: "orchestrator"},
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "containers": [{"name": "sidecar", "image": "none"}, {"name": "orchestrator", "image": "none"}],
        },
    }
    core = client.CoreV1Api(api)
    core.create_namespaced_service_account(namespace, {"metadata": {"name": "default"}})
    core.create_namespaced_pod(namespace, pod)


async def seen(rest: httpx.AsyncClient, namespace: str, headers: dict[str, str]) -> None:
    """Wait until the server knows the run."""

    async def is_known() -> bool:
        return (await rest.get(f"/namespaces/{namespace}/runs/first", headers=headers)).status_code == 200

    await until(is_known)


async def test_the_api_server_decides_who_reads_logs(
    rest: httpx.AsyncClient,
    api: client.ApiClient,
    namespace: str,
    roles: dict[str, str],
    reader: dict[str, str],
    kubelet: LogKubelet,
) -> None:
    run = make_run(api, namespace)
    await seen(rest, namespace, reader)
    logs = f"/namespaces/{namespace}/runs/first/logs"
    early = await rest.get(logs, headers=reader)
    assert (early.status_code, early.json()["reason"]) == (404, "LogsNotAvailable")
    make_pod(api, namespace, run, kubelet.node)
    starting = await rest.get(logs, headers=reader)
    assert (starting.status_code, starting.json()["reason"]) == (404, "LogsNotAvailable")

    kubelet.logs["first-orchestrator-x"] = LINES
    found = await rest.get(logs, headers=reader)
    assert found.status_code == 200, found.text
    assert [(line["message"], line["time"]) for line in found.json()["lines"]] == [
        ("INFO began", "2026-01-01T00:00:01.5Z"),
        ("ERROR broken", "2026-01-01T00:00:02.25Z"),
    ]
    errors = await rest.get(logs, params={"level": "ERROR", "since": "2026-01-01T00:00:02.1Z"}, headers=reader)
    assert [line["message"] for line in errors.json()["lines"]] == ["ERROR broken"]
    assert kubelet.asked[-1]["sinceTime"] == "2026-01-01T00:00:02Z"

    no_pods = bearer(Accounts(api).make(namespace, "vic", roles["viewer"]))
    refused = await rest.get(logs, headers=no_pods)
    assert (refused.status_code, refused.json()["reason"]) == (403, "AccessForbidden")
    assert "ods is forbidden" in refused.json()["detail"]


async def test_a_stream_tells_of_status_logs_and_events_and_goes_on(
    rest: httpx.AsyncClient, api: client.ApiClient, namespace: str, reader: dict[str, str], kubelet: LogKubelet
) -> None:
    run = make_run(api, namespace)
    make_pod(api, namespace, run, kubelet.node)
    kubelet.logs["first-orchestrator-x"] = LINES
    await seen(rest, namespace, reader)
    app = rest._transport.app  # type: ignore[attr-defined]  # httpx waits for the end of a response
    path = f"/namespaces/{namespace}/runs/first/stream"
    runs = client.CustomObjectsApi(api)

    def set_phase(phase: str) -> None:
        body = {"status": {"phase": phase}}
        runs.patch_namespaced_custom_object_status("rlrun.dev", "v1alpha1", namespace, "rlruns", "first", body)

    async with open_stream(app, path, reader, {"topics": "status,log,events"}) as stream:
        assert stream.status == 200, stream.body
        assert (await stream.next_of("log")).data["lines"][-1]["message"] == "ERROR broken"
        set_phase("Running")
        while (last := await stream.next_of("status")).data["phase"] != "Running":
            pass
    event = {
        "metadata": {"name": "event", "namespace": namespace},
        "involvedObject": {"kind": "RLRun", "name": "first", "namespace": namespace, "uid": run["metadata"]["uid"]},
        "reason": "AttemptStarted",
        "type": "Normal",
    }
    client.CoreV1Api(api).create_namespaced_event(namespace, event)
    kubelet.logs["first-orchestrator-x"] += "2026-01-01T00:00:02.75Z INFO later\n"
    set_phase("Completed")
    headers = {**reader, "Last-Event-ID": last.id or ""}
    async with open_stream(app, path, headers, {"topics": "status,log,events"}) as stream:
        found: dict[str, Any] = {}
        while set(found) != {"status", "log", "events"} or found["status"]["phase"] != "Completed":
            each = await stream.next()
            found[each.type] = each.data
    assert [line["message"] for line in found["log"]["lines"]] == ["INFO later"], "nothing comes twice"
    assert found["events"]["reason"] == "AttemptStarted"


async def test_a_topic_that_is_refused_refuses_the_stream(
    rest: httpx.AsyncClient, api: client.ApiClient, namespace: str, roles: dict[str, str]
) -> None:
    make_run(api, namespace)
    viewer = bearer(Accounts(api).make(namespace, "vic", roles["viewer"]))
    await seen(rest, namespace, viewer)
    path = f"/namespaces/{namespace}/runs/first/stream"
    refused = await rest.get(path, params={"topics": "status,log"}, headers=viewer)
    assert (refused.status_code, refused.json()["reason"]) == (403, "AccessForbidden")
    assert "list pods" in refused.json()["detail"]
    stranger = bearer(Accounts(api).make(namespace, "eve"))
    hidden = await rest.get(path, params={"topics": "status"}, headers=stranger)
    assert (hidden.status_code, hidden.json()["reason"]) == (404, "NamespaceNotFound")
