"""Checks of `podTemplate`, the patch of an RLModel for the pods of trainers and engines.

The isolation of pods depends on some pod fields. A patch must not set these fields, or may set them only to values at
least as strict as the operator's. docs/guides/models.md has the same list.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from rlrun.api.base.kubernetes_types import QUANTITY
from rlrun.api.base.pod_shape import (
    OWN_CONTAINERS,
    SOURCES,
    is_own_key,
    is_own_path,
    is_own_volume,
    misshapen_affinity,
)

POD_FIELDS = (
    "serviceAccountName", "serviceAccount", "automountServiceAccountToken", "hostNetwork", "hostPID", "hostIPC",
    "hostUsers", "shareProcessNamespace", "nodeName", "restartPolicy", "hostname", "subdomain", "setHostnameAsFQDN",
    "hostnameOverride", "ephemeralContainers", "terminationGracePeriodSeconds",
)  # fmt: skip
"""Fields of a pod's spec that a patch must not set."""
CONTAINER_FIELDS = ("image", "command", "args", "workingDir", "restartPolicy", "volumeDevices")
"""Fields of the operator's containers that a patch must not set."""
ENV_NAMES = ("RLRUN_*", "*_PROXY", "*_proxy", "PYTHONPATH", "VLLM_API_KEY", "VLLM_USE_RUST_FRONTEND")
"""Variables that a patch must not set: they hold credentials, configure rlrun or the proxy, or select code to run."""
SECURITY_FIELDS = ("appArmorProfile", "procMount", "seLinuxOptions", "windowsOptions")
"""Fields of security contexts that a patch must not set."""
STRICT_VALUES: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "privileged": False,
    "runAsNonRoot": True,
}
"""Fields of security contexts that a patch may set only to the given value."""
MERGE_KEYS: Mapping[str, str] = {
    "claims": "name",
    "containers": "name",
    "env": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Merge key of each list: the field that identifies an entry. All other lists are replaced as a whole."""
OBJECTS = ("annotations", "capabilities", "labels", "limits", "metadata", "nodeSelector", "requests", "resources",
           "seccompProfile", "securityContext", "spec", "valueFrom")  # fmt: skip
"""Fields whose values are objects."""
MAPS = ("annotations", "labels", "limits", "matchLabels", "nodeSelector", "requests", "volumeAttributes")
"""Maps whose keys users choose. A key may equal the name of a field, such as a label `env`."""
GRANTS = (
    "k8s.v1.cni.cncf.io/", "v1.multus-cni.io/", "cni.projectcalico.org/", "k8s.ovn.org/", "ovn.kubernetes.io/",
    "networking.gke.io/", "vpc.amazonaws.com/", "iam.amazonaws.com/", "eks.amazonaws.com/", "iam.gke.io/",
    "azure.workload.identity/", "aadpodidbinding", "vault.hashicorp.com/",
    "io.katacontainers.", "dev.gvisor.", "io.kubernetes.cri-o.", "devices.nri.io/",
)  # fmt: skip
"""Prefixes of labels and annotations through which other software gives a pod access to networks, cloud roles or
Secrets, or changes its isolation.
"""
APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"
SHARED_VOLUMES = ("tmp", "shm", "cache")
"""The operator's volumes that other containers may mount."""


def refused_fields(patch: dict[str, Any]) -> list[str]:
    """Return a message for each field that the patch must not set. If fields have the wrong type, or would be removed,
    only these are reported.
    """
    # The second check relies on the types that the first one verifies.
    return list(_unusable(patch, "")) or list(_violations(patch))


def access_refusal(field: str, name: str) -> Iterator[str]:
    """Yield the reason to refuse a label or annotation through which the pod would gain access to other networks, roles
    or Secrets.
    """
    if name.startswith(GRANTS):
        yield (
            f"{field}[{name}]: it could give the pod another network, a cloud role, Secrets or weaker isolation. "
            f"Platform teams can set it outside `podTemplate`"
        )


def _violations(patch: dict[str, Any]) -> Iterator[str]:
    yield from (f"{key}: only metadata and spec can be set" for key in patch.keys() - {"metadata", "spec"})
    metadata, spec = _object(patch.get("metadata")), _object(patch.get("spec"))
    for key, value in metadata.items():
        if key not in ("labels", "annotations"):
            yield f"metadata.{key}: only labels and annotations can be set"
            continue
        for name in _object(value):
            if is_own_key(name) or name.startswith(APP_ARMOR):
                yield f"metadata.{key}[{name}]: reserved for the operator"
            yield from access_refusal(f"metadata.{key}", name)
    yield from (f"spec.{key}: reserved for the operator" for key in POD_FIELDS if key in spec)
    yield from _security(spec.get("securityContext"), "spec.securityContext")
    for path, volume in _entries(spec, "volumes"):
        if is_own_volume(str(volume.get("name"))):
            yield f"{path}: the volume is reserved for the operator"
        for source in sorted(volume.keys() - {"name", *SOURCES}):
            yield f"{path}.{source}: the source must be one of {', '.join(SOURCES)}"
    for kind in ("containers", "initContainers"):
        for path, container in _entries(spec, kind):
            yield from _container(container, path)


def _container(container: dict[str, Any], path: str) -> Iterator[str]:
    if container.get("name") in OWN_NAMES:
        yield from (f"{path}.{key}: reserved for the operator" for key in CONTAINER_FIELDS if key in container)
    yield from _security(container.get("securityContext"), f"{path}.securityContext")
    if "envFrom" in container:
        yield f"{path}.envFrom: list each variable in `env` instead"
    for place, port in _entries(container, "ports", f"{path}."):
        if "hostPort" in port:
            yield f"{place}.hostPort: pods must not use host ports"
    for place, variable in _entries(container, "env", f"{path}."):
        if any(fnmatchcase(str(variable.get("name")), pattern) for pattern in ENV_NAMES):
            yield f"{place}: the variable is reserved for the operator"
        if "secretKeyRef" in _object(variable.get("valueFrom")):
            yield f"{place}.valueFrom.secretKeyRef: refer to Secrets in `env` of the role, outside `podTemplate`"
    for place, mount in _entries(container, "volumeMounts", f"{path}."):
        name = str(mount.get("name"))
        if is_own_volume(name) and name not in SHARED_VOLUMES:
            yield f"{place}: the volume {name} is reserved for the operator"
        if is_own_path(str(mount.get("mountPath"))) and container.get("name") in OWN_NAMES:
            yield f"{place}: the folder is in one of the operator's volumes"


def _security(context: Any, path: str) -> Iterator[str]:
    for key, value in _object(context).items():
        if key in SECURITY_FIELDS:
            yield f"{path}.{key}: reserved for the operator"
        elif key in STRICT_VALUES and value != STRICT_VALUES[key]:
            yield f"{path}.{key}: it must be {json.dumps(STRICT_VALUES[key])}"
        elif key in ("runAsUser", "runAsGroup") and value == 0:
            yield f"{path}.{key}: pods must not run as root"
        elif key == "fsGroup" and value == 0:
            yield f"{path}.{key}: files on volumes must not belong to the root group"
        elif key == "supplementalGroups" and (not isinstance(value, list) or 0 in value):
            yield f"{path}.{key}: it must be a list of group ids without 0, the root group"
        elif key == "sysctls":
            yield f"{path}.{key}: pods must not change kernel parameters"
        elif key == "seccompProfile" and _object(value).get("type") == "Unconfined":
            yield f"{path}.{key}: pods must have a seccomp profile"


def _unusable(value: Any, path: str, parent: str = "") -> Iterator[str]:
    """Yield an error for each removal and each value of the wrong type, because either could replace whole parts of a
    pod.
    """
    if isinstance(value, dict):
        for key, below in value.items():
            place = f"{path}.{key}".strip(".")
            if str(key).startswith("$") or below is None:
                yield f"{place}: a patch cannot remove fields"
            elif parent in MAPS:
                if parent in ("limits", "requests") and not re.fullmatch(QUANTITY, str(below)):
                    yield f"{place}: it must be a quantity, such as 500m or 16Gi"
            elif key in MERGE_KEYS:
                yield from _find_unkeyed(below, place, MERGE_KEYS[key])
            elif key == "affinity":
                yield from misshapen_affinity(below, place)
            elif key == "tolerations" and not isinstance(below, list):
                yield f"{place}: it must be a list"
            elif key in OBJECTS and not isinstance(below, dict):
                yield f"{place}: it must be an object"
            yield from _unusable(below, place, key)
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from _unusable(below, f"{path}[{_object(below).get('name') or index}]")


def _find_unkeyed(entries: Any, path: str, key: str) -> Iterator[str]:
    """Yield an error unless the value is a list of objects that each have the list's merge key."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        yield f"{path}: it must be a list of objects"
        return
    kind, name = (int, "a number") if key == "containerPort" else (str, "a string")
    for index, entry in enumerate(entries):
        if type(entry.get(key)) is not kind or not entry[key]:
            yield f"{path}[{index}].{key}: must be set to {name}, because entries are merged by this key"


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _entries(parent: dict[str, Any], key: str, prefix: str = "spec.") -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield the entries of a list of named objects with their paths."""
    entries = parent.get(key)
    for index, entry in enumerate(entries if isinstance(entries, list) else []):
        name = _object(entry).get("name") or index
        yield f"{prefix}{key}[{name}]", _object(entry)


OWN_NAMES = frozenset[str]().union(*OWN_CONTAINERS.values())
"""Names of the operator's containers in pods of all roles."""
