"""The pieces that all pods of a run share: a locked-down security context, writable places, probes, ports."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlrun.api.base.kubernetes_types import EnvVar, Resources
from rlrun.api.model import Pods
from rlrun.constants import Role

from rlrun_operator.config.settings import Image, OperatorSettings
from rlrun_operator.resources.naming import Identity

Obj = dict[str, Any]

UID = 1000
GPU_RESOURCE = "nvidia.com/gpu"
MODEL_DIR = "/models/base"
SECURITY_CONTEXT: Obj = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
}


def pod_template(
    identity: Identity,
    settings: OperatorSettings,
    role: Role,
    component: str,
    *,
    containers: Sequence[Obj],
    init_containers: Sequence[Obj] = (),
    volumes: Mapping[str, Obj] | None = None,
    priority_class: str | None = None,
    shape: Pods | None = None,
    grace_seconds: int = 30,
    restart_policy: str = "Always",
) -> Obj:
    """A pod template: nothing of the cluster's API inside, nothing writable but /tmp and the given volumes."""
    spec: Obj = {
        "serviceAccountName": identity.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": restart_policy,
        "terminationGracePeriodSeconds": grace_seconds,
        "securityContext": {
            "runAsUser": UID,
            "runAsGroup": UID,
            "runAsNonRoot": True,
            "fsGroup": UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": list(containers),
        "volumes": [{"name": "tmp", "emptyDir": {}}, *({"name": k, **v} for k, v in (volumes or {}).items())],
    }
    if init_containers:
        spec["initContainers"] = list(init_containers)
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    if priority_class:
        spec["priorityClassName"] = priority_class
    if shape is not None and shape.node_selector:
        spec["nodeSelector"] = dict(shape.node_selector)
    if shape is not None and shape.tolerations:
        spec["tolerations"] = [t.to_json_dict() for t in shape.tolerations]
    return {"metadata": {"labels": identity.labels(role, component)}, "spec": spec}


def container(
    name: str,
    image: Image | str,
    settings_image: Image,
    *,
    command: Sequence[str] = (),
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    extra_env: Sequence[EnvVar] = (),
    env_from: Sequence[Obj] = (),
    ports: Mapping[str, int] | None = None,
    mounts: Mapping[str, str] | None = None,
    read_only_mounts: Mapping[str, str] | None = None,
    resources: Obj | None = None,
    probes: Obj | None = None,
) -> Obj:
    """One container. `image` may be a user's override, which keeps the pull policy of the platform's own image."""
    variables = {"HOME": "/tmp", **(env or {})}
    variables.update({v.name: v.value for v in extra_env})
    result: Obj = {
        "name": name,
        "image": image if isinstance(image, str) else image.reference,
        "imagePullPolicy": settings_image.pull_policy,
        "env": [{"name": k, "value": v} for k, v in variables.items()],
        "securityContext": SECURITY_CONTEXT,
        # With a crash that wrote no message, the last lines of the log are the message.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            *({"name": k, "mountPath": v} for k, v in (mounts or {}).items()),
            *({"name": k, "mountPath": v, "readOnly": True} for k, v in (read_only_mounts or {}).items()),
        ],
        **(probes or {}),
    }
    if command:
        result["command"] = list(command)
    if args:
        result["args"] = list(args)
    if env_from:
        result["envFrom"] = list(env_from)
    if ports:
        result["ports"] = [{"name": k, "containerPort": v} for k, v in ports.items()]
    if resources:
        result["resources"] = resources
    return result


def resources_of(resources: Resources, gpus: int = 0) -> Obj:
    """A container's `resources`; GPUs are a limit, which Kubernetes takes for the request as well."""
    result = {"requests": dict(resources.requests), "limits": dict(resources.limits)}
    if gpus:
        result["limits"][GPU_RESOURCE] = str(gpus)
    return {k: v for k, v in result.items() if v}


def http_probes(port: str, *, startup_seconds: int, ready_path: str = "/readyz", live_path: str = "/healthz") -> Obj:
    """Probes over HTTP: alive after at most `startup_seconds`, then looked at every 10 s (2 s for readiness).

    Five minutes without an answer end a container: on a busy node a healthy one may be silent for one, and a restart
    costs more than the wait.
    """
    return {
        "startupProbe": {
            "httpGet": {"path": live_path, "port": port},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": max(1, startup_seconds // 2),
        },
        "livenessProbe": {
            "httpGet": {"path": live_path, "port": port},
            "periodSeconds": 10,
            "timeoutSeconds": 10,
            "failureThreshold": 30,
        },
        "readinessProbe": {
            "httpGet": {"path": ready_path, "port": port},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
    }


def s3_env_from(identity: Identity) -> list[Obj]:
    """The AWS_* variables, from the run's own Secret."""
    return [{"secretRef": {"name": identity.s3_secret}}]


def deployment(identity: Identity, name: str, role: Role, component: str, replicas: int, template: Obj) -> Obj:
    """A Deployment that replaces rather than rolls: two trainers, or two engines on one GPU, help nobody."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": identity.metadata(name, role, component),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 0,
            "progressDeadlineSeconds": 3600,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": identity.selector(role, component)},
            "template": template,
        },
    }


def service(
    identity: Identity,
    name: str,
    role: Role,
    component: str,
    ports: Mapping[str, int],
    *,
    headless: bool = False,
    unready: bool = False,
) -> Obj:
    """A Service in front of the component's pods: the ready ones, or with `unready` all of them."""
    spec: Obj = {
        "selector": identity.selector(role, component),
        "ports": [{"name": k, "port": v, "targetPort": k, "protocol": "TCP"} for k, v in ports.items()],
    }
    if headless:
        spec["clusterIP"] = "None"
    if unready:
        spec["publishNotReadyAddresses"] = True
    return {"apiVersion": "v1", "kind": "Service", "metadata": identity.metadata(name, role, component), "spec": spec}
