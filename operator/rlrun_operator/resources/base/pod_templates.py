"""Builders shared by all pods: security context, volumes, probes, ReplicaSets and Services."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rlrun.api.base.kubernetes_types import EnvVar, Resources
from rlrun.api.base.pod_shape import PodShape
from rlrun.api.base.pod_sizes import with_default_resources
from rlrun.api.model import Pods
from rlrun.constants import (
    ATTEMPT_LABEL,
    CA_BUNDLE_CONTAINER,
    CA_BUNDLE_DIR,
    CA_BUNDLE_PATH,
    CA_BUNDLE_VARIABLE,
    LOG_HOLD_CONTAINER,
    LOG_HOLD_SECONDS,
    ExitCode,
    Role,
)
from rlrun.kube.objects import Obj

from rlrun_operator.config.quantities import to_millis
from rlrun_operator.config.settings import Image, OperatorSettings
from rlrun_operator.resources.base.naming import OwnerIdentity, RunIdentity
from rlrun_operator.resources.base.outgoing import VOLUME, add_authorities, inject_proxy_and_ca_env
from rlrun_operator.resources.base.pod_patch import SECURITY_CONTEXT, patch_template
from rlrun_operator.resources.base.pod_shape import apply_shapes

GPU_RESOURCE = "nvidia.com/gpu"
EPHEMERAL_STORAGE = "ephemeral-storage"
MODEL_DIR = "/models/base"
BACKOFF_LIMIT = 1000
"""Back-off limit of Jobs, which is never reached in practice, because the operator counts crashes itself (maxRestarts).
"""
USER_VARIABLES = {"HOME": "/tmp", "USER": "rlrun", "LOGNAME": "rlrun"}
"""Home folder and name of the user, for libraries that would fail if the image has no entry for the uid."""


def pod_template(
    identity: OwnerIdentity,
    settings: OperatorSettings,
    role: Role,
    component: str,
    *,
    containers: Sequence[Obj],
    storage: str | None,
    init_containers: Sequence[Obj] = (),
    volumes: Mapping[str, Obj] | None = None,
    priority_class: str | None = None,
    shapes: Sequence[PodShape] = (),
    patch: Mapping[str, Any] = MappingProxyType({}),
    grace_seconds: int = 30,
    restart_policy: str = "Always",
) -> Obj:
    """Return a pod template without a token for the Kubernetes API. Containers with a read-only root filesystem can
    write only to /tmp and to mounted volumes.

    `shapes` are the shapes of the role; their mounts are added to the first container. `patch` is a `podTemplate`,
    whose containers also get the CA bundle and the proxy variables. `storage` is the ephemeral-storage limit of each
    container and of /tmp, or None for no limit.
    """

    is_run = isinstance(identity, RunIdentity)

    def add_limits(own: Sequence[Obj]) -> list[Obj]:
        return [_with_storage(c, settings.ephemeral_storage.request, storage) for c in own]

    spec: Obj = {
        "serviceAccountName": identity.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": restart_policy,
        "terminationGracePeriodSeconds": grace_seconds + (LOG_HOLD_SECONDS if is_run else 0),
        "securityContext": {
            **settings.security_context.to_json_dict(),
            "runAsNonRoot": True,
        },
        "containers": add_limits(containers),
        "volumes": [{"name": "tmp", **disk_volume(storage)}, *({"name": k, **v} for k, v in (volumes or {}).items())],
    }
    if is_run:
        # Must be the first, so that it starts before all others.
        init_containers = [_log_hold(settings), *init_containers]
    if init_containers:
        spec["initContainers"] = add_limits(init_containers)
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    template: Obj = {"metadata": {"labels": identity.labels(role, component)}, "spec": spec}
    apply_shapes(template, shapes, identity.selector(role, component))
    if priority_class:
        spec["priorityClassName"] = priority_class
    if settings.ca_bundle:
        add_authorities(spec, *add_limits([_bundle_writer(settings)]))
    template = patch_template(template, dict(patch))
    inject_proxy_and_ca_env(template["spec"], settings, role)
    return template


def container(
    name: str,
    image: Image,
    *,
    own_image: str | None = None,
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
    read_only_root: bool = True,
) -> Obj:
    """Return a container. If `own_image`, the RLModel's image, is given, it replaces the platform's `image`, but the
    pull policy of `image` applies.
    """
    variables = {k: {"name": k, "value": v} for k, v in {**USER_VARIABLES, **(env or {})}.items()}
    variables.update({v.name: _variable(v) for v in extra_env})
    result: Obj = {
        "name": name,
        "image": own_image or image.reference,
        "imagePullPolicy": image.pull_policy,
        "env": list(variables.values()),
        "securityContext": {**SECURITY_CONTEXT, "readOnlyRootFilesystem": read_only_root},
        # After a crash without a termination message, Kubernetes uses the end of the log.
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


def _log_hold(settings: OperatorSettings) -> Obj:
    """Return the native sidecar that keeps a pod until its logs are copied.

    The sidecar uses the platform's image, because an image from the RLModel may be an older version without this
    program.
    """
    made = container(
        LOG_HOLD_CONTAINER,
        settings.images.orchestrator,
        command=["python", "-m", "rlrun.service.containers.log_hold", str(LOG_HOLD_SECONDS)],
        resources={"requests": {"cpu": "1m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
    )
    return {**made, "restartPolicy": "Always"}


def _bundle_writer(settings: OperatorSettings) -> Obj:
    """Return the init container that writes the file with the authorities that the other containers trust."""
    return container(
        CA_BUNDLE_CONTAINER,
        settings.images.orchestrator,
        command=["python", "-m", "rlrun.service.trust_bundle", CA_BUNDLE_PATH],
        env={CA_BUNDLE_VARIABLE: settings.ca_bundle},
        mounts={VOLUME: CA_BUNDLE_DIR},
        resources=resources_of(settings.sidecar_resources),
    )


def _variable(variable: EnvVar) -> Obj:
    if variable.value_from is None:
        return {"name": variable.name, "value": variable.value or ""}
    return {"name": variable.name, "valueFrom": variable.value_from.to_json_dict()}


def resources_of(resources: Resources, gpus: int = 0) -> Obj:
    """Return a container's `resources`. GPUs are set only as a limit, which Kubernetes also uses as the request."""
    result = {"requests": dict(resources.requests), "limits": dict(resources.limits)}
    if gpus:
        result["limits"][GPU_RESOURCE] = str(gpus)
    return {k: v for k, v in result.items() if v}


def model_resources(shape: Pods) -> Obj:
    """Return the `resources` of a trainer or engine container, with defaults for CPU and memory."""
    return resources_of(with_default_resources(shape.resources, shape.gpus), shape.gpus)


def has_devices(shape: Pods) -> bool:
    """Return whether the role's container gets devices: GPUs, extended resources or resource claims.

    Names of extended resources contain a slash. Examples are instances of partitioned GPUs (MIG) and devices from
    other vendors.
    """
    spec = shape.pod_template.get("spec", {})
    patched = [c.get("resources", {}) for c in spec.get("containers", [])]
    named = [shape.resources.requests, shape.resources.limits]
    named += [resources.get(key, {}) for resources in patched for key in ("requests", "limits")]
    return shape.gpus > 0 or any("/" in name for names in named for name in names) or "resourceClaims" in spec


def has_read_only_root(settings: OperatorSettings, shape: Pods) -> bool:
    """Return whether the role's container gets a read-only root filesystem.

    The container toolkits of GPU vendors write links to libraries into the root filesystem when the container is
    created, which fails if it is read-only.
    """
    return settings.gpu_read_only_root_filesystem or not has_devices(shape)


def shared_memory(settings: OperatorSettings, shape: Pods) -> Obj:
    """Return the volume for /dev/shm."""
    return {"emptyDir": {"medium": "Memory", "sizeLimit": shape.shm_size or settings.shm_size}}


def storage_limit(resources: Resources, default: str | None) -> str | None:
    """Return the ephemeral-storage limit in `resources`, or else `default`."""
    return resources.limits.get(EPHEMERAL_STORAGE, default)


def disk_volume(size: str | None) -> Obj:
    """Return a volume on the node's disk. The kubelet evicts a pod whose volume exceeds `size`, if set."""
    return {"emptyDir": {"sizeLimit": size} if size else {}}


def _with_storage(made: Obj, request: str | None, limit: str | None) -> Obj:
    """Add an ephemeral-storage request and limit to the container, unless its resources set a limit.

    The kubelet compares the volumes of a pod with the sum of its containers' limits, so either all containers need a
    limit or none. The request is explicit, because it would otherwise default to the limit.
    """
    resources = made.get("resources") or {}
    if request is None or limit is None or EPHEMERAL_STORAGE in resources.get("limits", {}):
        return made
    request = resources.get("requests", {}).get(EPHEMERAL_STORAGE, request)
    # The API server refuses a request above the limit.
    own = {"requests": {EPHEMERAL_STORAGE: request}, "limits": {EPHEMERAL_STORAGE: max(request, limit, key=to_millis)}}
    return {**made, "resources": {key: {**resources.get(key, {}), **value} for key, value in own.items()}}


def http_probes(port: str, *, startup_seconds: int, ready_path: str = "/readyz", live_path: str = "/healthz") -> Obj:
    """Return HTTP probes: startup within `startup_seconds`, then liveness every 10 s and readiness every 2 s.

    Liveness fails after five minutes without a response, because a healthy container on a busy node may not respond for
    a minute, and a restart costs more than waiting.
    """

    def probe(path: str, *, period: int, timeout: int, failures: int) -> Obj:
        times = {"periodSeconds": period, "timeoutSeconds": timeout, "failureThreshold": failures}
        return {"httpGet": {"path": path, "port": port}, **times}

    return {
        "startupProbe": probe(live_path, period=2, timeout=5, failures=max(1, startup_seconds // 2)),
        "livenessProbe": probe(live_path, period=10, timeout=10, failures=30),
        "readinessProbe": probe(ready_path, period=2, timeout=5, failures=3),
    }


def token_env_from(identity: RunIdentity) -> list[Obj]:
    """Return the `envFrom` with the run's tokens. The reference is not optional, because a process without a token
    accepts all requests.
    """
    return [{"secretRef": {"name": identity.token_secret}}]


def replica_set(identity: RunIdentity, name: str, role: Role, component: str, replicas: int, template: Obj) -> Obj:
    """Return a ReplicaSet of one attempt. Within an attempt the template never changes, so no Deployment is needed.

    The selector includes the attempt, so that the ReplicaSet never adopts pods of another attempt.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": identity.metadata(name, role, component),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {**identity.selector(role, component), ATTEMPT_LABEL: str(identity.attempt)}},
            "template": template,
        },
    }


def pod_failure_policy(container_name: str) -> Obj:
    """Return a pod failure policy that fails the Job on a configuration error and ignores disruptions."""
    values = [ExitCode.CONFIGURATION.value]
    on_exit = {"containerName": container_name, "operator": "In", "values": values}
    return {
        "rules": [
            {"action": "FailJob", "onExitCodes": on_exit},
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ]
    }


def service(
    identity: OwnerIdentity,
    name: str,
    role: Role,
    component: str,
    ports: Mapping[str, int],
    *,
    headless: bool = False,
    unready: bool = False,
) -> Obj:
    """Return a Service for the component's ready pods, or for all its pods if `unready`.

    The Service is single-stack, in the cluster's first address family. A dual-stack headless Service would list each
    pod twice.
    """
    spec: Obj = {
        "selector": identity.selector(role, component),
        "ports": [{"name": k, "port": v, "targetPort": k, "protocol": "TCP"} for k, v in ports.items()],
    }
    if headless:
        spec["clusterIP"] = "None"
    if unready:
        spec["publishNotReadyAddresses"] = True
    return {"apiVersion": "v1", "kind": "Service", "metadata": identity.metadata(name, role, component), "spec": spec}
