"""Objects of a cluster that tests of the operator start from."""

import base64
from typing import Any

from rlrun.kube.objects import Obj

STORAGE_KEY = b"a key that signs grants"
"""The operator's key of grants for rlrun-server."""


def run_object(name: str = "reverse", namespace: str = "team", uid: str = "uid-1", **spec: Any) -> Obj:
    return {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLRun",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid,
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "model": "tiny/model",
            "maxSteps": 10,
            "sampling": {"maxTokens": 64},
            "env": [{"id": "rlrun/reverse-text"}],
            **spec,
        },
    }


def model_object(model_id: str = "tiny/model", **spec: Any) -> Obj:
    return {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLModel",
        "metadata": {"name": model_id.replace("/", "-"), "uid": f"model-{model_id}", "resourceVersion": "1"},
        "spec": {
            "id": model_id,
            "source": "s3://rlrun/models/tiny",
            "seqLen": 256,
            "trainer": {"gpus": 0},
            "inference": {"gpus": 0},
            **spec,
        },
    }


def source_secret(**data: str) -> Obj:
    plain = {"AWS_ACCESS_KEY_ID": "id-of-the-bucket", "AWS_SECRET_ACCESS_KEY": "key-of-the-bucket", **data}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s3", "namespace": "rlrun-system", "uid": "s3-source", "resourceVersion": "1"},
        "data": {k: base64.b64encode(v.encode()).decode() for k, v in plain.items()},
    }


def checkpoint_object(
    name: str, step: int, uri: str, *, run: str = "reverse", uid: str = "uid-1", phase: str = "Ready", **more: Any
) -> Obj:
    """A checkpoint of a run. `more`: fields of its status."""
    labels = {"rlrun.dev/run-uid": uid}
    return {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLCheckpoint",
        "metadata": {"name": name, "namespace": "team", "uid": name, "labels": labels},
        "spec": {"runName": run, "runUid": uid, "model": "tiny/model", "step": step, "uri": uri},
        "status": {"phase": phase, **more},
    }


def event_object(uid: str, reason: str, message: str, at: str = "2026-01-01T00:00:00Z", kind: str = "Warning") -> Obj:
    """An Event about the object with this uid."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{uid}.{message}", "namespace": "team", "creationTimestamp": at},
        "involvedObject": {"uid": uid},
        "type": kind,
        "reason": reason,
        "message": message,
        "lastTimestamp": at,
    }


def hub_secret(
    value: str = "hf_token", *, name: str = "hub", key: str = "token", labels: dict[str, str] | None = None
) -> Obj:
    """A Secret of the namespace `team` with a token of the Hugging Face hub."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": "team", "uid": f"secret-{name}", "labels": labels or {}},
        "data": {key: base64.b64encode(value.encode()).decode()},
    }


def pod(
    role: str,
    component: str | None = None,
    *,
    uid: str = "",
    attempt: int = 1,
    run_uid: str = "uid-1",
    ready: bool = False,
    phase: str = "Running",
    restarts: int = 0,
    state: Obj | None = None,
    last: Obj | None = None,
    deleting: bool = False,
    conditions: list[Obj] | None = None,
    created: str = "2026-01-01T00:00:00Z",
    container: str | None = None,
) -> Obj:
    component = component or role
    name = f"reverse-{component}-{uid or 'x'}"
    container = container or {"inference": "vllm"}.get(role, role)
    found: Obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid or f"pod-{component}",
            "creationTimestamp": created,
            "labels": {
                "rlrun.dev/run": "reverse",
                "rlrun.dev/run-uid": run_uid,
                "rlrun.dev/role": role,
                "rlrun.dev/component": component,
                "rlrun.dev/attempt": str(attempt),
            },
        },
        "spec": {"containers": [{"name": container, "image": "img:1", "resources": {"limits": {"memory": "256Mi"}}}]},
        "status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}, *(conditions or [])],
            "containerStatuses": [
                {
                    "name": container,
                    "restartCount": restarts,
                    "state": state or ({"running": {}} if phase == "Running" else {}),
                    "lastState": last or {},
                }
            ],
        },
    }
    if deleting:
        found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return found


def inject(obj: Obj, name: str = "istio-proxy", *, restarts: int = 0, state: Obj | None = None, **more: Any) -> Obj:
    """Another program, such as a mesh, has put a container into the pod. `more`: fields of its status."""
    obj["spec"]["containers"].append({"name": name, "image": "mesh:1"})
    status = {"name": name, "restartCount": restarts, "state": state or {"running": {}}, **more}
    obj["status"]["containerStatuses"].append(status)
    return obj


def reject(obj: Obj, reason: str = "UnexpectedAdmissionError", message: str = "", **more: Any) -> Obj:
    """The kubelet does not admit the pod, which stays as a failed one. `more`: fields of its status."""
    words = message or (
        "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu, which is "
        "unexpected"
    )
    failed = {"phase": "Failed", "reason": reason, "message": f"Pod was rejected: {words}", "containerStatuses": []}
    obj["status"] |= {**failed, **more}
    obj["spec"]["nodeName"] = "gpu-1"
    return obj


def without_container(
    role: str = "trainer", component: str | None = None, *, waits: str = "ContainerCreating", **more: Any
) -> Obj:
    """A pod with a node since 2026-01-01, whose kubelet has not created a container."""
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    state = {"waiting": {"reason": waits}}
    obj = pod(role, component, phase="Pending", conditions=[scheduled], state=state, **more)
    obj["spec"]["nodeName"] = "gpu-1"
    return obj


def terminated(code: int, reason: str = "Error", message: str = "", *, finished: str = "2026-01-01T00:00:00Z") -> Obj:
    times = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": finished}
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, **times}}


OUT_OF_DISK = (
    'Usage of EmptyDir volume "tmp" exceeds the limit "10Gi". ',
    "Pod ephemeral local storage usage exceeds the total limit of containers 10Gi. ",
    'Container environment exceeded its local ephemeral storage limit "10Gi". ',
)
"""Messages of the kubelet for pods that exceed their own limit.

The formats of these and the next messages are constants of Kubernetes' pkg/kubelet/eviction/helpers.go, put together by
its `evictionMessage` and by `localStorageEviction` of eviction_manager.go.
"""
NODE_FULL = (
    "The node was low on resource: ephemeral-storage. Threshold quantity: 10736283647, available: 8123412Ki. Container "
    "environment was using 5Gi, request is 64Mi, has larger consumption of ephemeral-storage. "
)
"""Message of the kubelet for pods that it evicts because the node is full. Files on volumes are not in the usage."""


def evict(evicted: Obj, message: str = OUT_OF_DISK[0], *, finished: str = "2026-01-01T00:00:00Z") -> Obj:
    """The kubelet ends the pod, which stays as a failed one."""
    evicted["status"] |= {"phase": "Failed", "reason": "Evicted", "message": message}
    evicted["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    for status in evicted["status"]["containerStatuses"]:
        status["state"] = terminated(137, finished=finished)
    return evicted
