"""Strips cached objects of the parts that no reconcile uses. This saves most of the memory and decoding time."""

from typing import Any

from rlrun.kube.kinds import JOB, NETWORK_POLICY, POD, REPLICA_SET, SERVICE, ResourceKind
from rlrun.kube.objects import Obj

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""Annotation of kubectl that contains a copy of the complete object."""
WITHOUT_SPEC = frozenset({SERVICE, NETWORK_POLICY})
POD_CREATORS = frozenset({REPLICA_SET, JOB})
UNUSED_OF_CONTROLLERS = ("template", "selector")
UNUSED_OF_PODS = (
    "affinity",
    "automountServiceAccountToken",
    "dnsPolicy",
    "enableServiceLinks",
    "preemptionPolicy",
    "schedulerName",
    "serviceAccount",
    "tolerations",
    "volumes",
)
UNUSED_OF_CONTAINERS = (
    "args",
    "command",
    "env",
    "envFrom",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "ports",
    "readinessProbe",
    "securityContext",
    "startupProbe",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "volumeMounts",
)


def used_parts(kind: ResourceKind, obj: Obj) -> Obj:
    """Return the object without managed fields, LAST_APPLIED and parts that reconciles do not use."""
    metadata = _without(obj["metadata"], ("managedFields",))
    if LAST_APPLIED in (metadata.get("annotations") or {}):
        metadata["annotations"] = _without(metadata["annotations"], (LAST_APPLIED,))
    parts = {**obj, "metadata": metadata}
    if kind in WITHOUT_SPEC:
        parts = _without(parts, ("spec", "status"))
    elif kind in POD_CREATORS and "spec" in obj:
        parts["spec"] = _without(obj["spec"], UNUSED_OF_CONTROLLERS)
    elif kind == POD and "spec" in obj:
        parts["spec"] = _of_pod(obj["spec"])
    return parts


def _of_pod(spec: Obj) -> Obj:
    used = _without(spec, UNUSED_OF_PODS)
    if images := [volume for volume in spec.get("volumes") or () if "image" in volume]:
        used["volumes"] = images
    for key in ("initContainers", "containers"):
        if key in spec:
            used[key] = [_without(container, UNUSED_OF_CONTAINERS) for container in spec[key] or ()]
    return used


def _without(obj: dict[str, Any], names: tuple[str, ...]) -> Obj:
    return {key: value for key, value in obj.items() if key not in names}
