"""Placement, labels, annotations and volumes that a platform team sets for the pods of one role.

The fields are those of Kubernetes. Trainers and engines are configured in the RLModel, other roles in the chart.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from rlrun.api.base.kubernetes_types import LabelValue, Toleration
from rlrun.api.base.names import LABEL, ObjectName, snake
from rlrun.api.base.rules import LIST_MAP_KEYS, Rule, Spec
from rlrun.constants import CA_BUNDLE_CONTAINER, LOG_HOLD_CONTAINER, Role

OWN_CONTAINERS: Mapping[str, frozenset[str]] = {
    Role.trainer: frozenset({CA_BUNDLE_CONTAINER, LOG_HOLD_CONTAINER, "gpu-check", "fetch-model", "trainer"}),
    Role.inference: frozenset(
        {CA_BUNDLE_CONTAINER, LOG_HOLD_CONTAINER, "engine-access", "gpu-check", "fetch-model", "vllm", "sidecar"}
    ),
    Role.environment: frozenset({CA_BUNDLE_CONTAINER, LOG_HOLD_CONTAINER, "environment"}),
    Role.orchestrator: frozenset({CA_BUNDLE_CONTAINER, LOG_HOLD_CONTAINER, "orchestrator"}),
}
"""Containers that the operator puts into the pods of each role. All other containers come from a podTemplate or were
injected, for example by a service mesh.
"""
OWN_KEYS = ("rlrun.dev/", "app.kubernetes.io/")
"""Prefixes of the labels with which the operator, Services and NetworkPolicies select pods, and of the operator's
annotations.
"""
OWN_VOLUMES = (
    "tmp", "shm", "cache", "models", "adapters", "config", "spool", "package", "order", "engine-access", "ca-bundle",
)  # fmt: skip
"""Names of the volumes that the operator adds to pods, in addition to names that begin with `storage-token-`."""
OWN_VOLUME_PREFIX = "storage-token-"
OWN_PATHS = ("/tmp", "/dev/shm", "/cache", "/models", "/adapters", "/environment", "/engine-access", "/var/spool/rlrun",
             "/etc/rlrun", "/etc/rlrun-ca", "/var/run/secrets", "/run/secrets")  # fmt: skip
"""Mount paths of the operator's volumes. `/var/run` is a link to `/run` in most images."""
UNUSUAL_PATH = "//|/[.][.]?(/|$)"
"""Pattern of paths that are not normalized: with `//`, or with a segment `.` or `..`."""
SOURCES = ("configMap", "csi", "emptyDir", "ephemeral", "image", "nfs", "persistentVolumeClaim")

Annotation = Annotated[str, Field(max_length=4096)]
FreeForm = Annotated[dict[str, Any], Field(max_length=64)]


def is_own_key(key: str) -> bool:
    """Return whether only the operator may set the label or annotation."""
    return key.startswith(OWN_KEYS)


def is_own_volume(name: str) -> bool:
    """Return whether the name is reserved for the operator's own volumes."""
    return name in OWN_VOLUMES or name.startswith(OWN_VOLUME_PREFIX)


def is_own_path(path: str) -> bool:
    """Return whether the path is a mount path of the operator's volumes, or below one."""
    plain = "/" + posixpath.normpath(path).lstrip("/")
    return f"{plain}/".startswith(tuple(f"{folder}/" for folder in OWN_PATHS))


def misshapen_affinity(affinity: Any, path: str = "affinity") -> Iterator[str]:
    """Yield an error for each field of an affinity that the operator reads and that has the wrong type."""
    if not isinstance(affinity, dict):
        yield f"{path}: it must be an object"
        return
    apart = affinity.get("podAntiAffinity", {})
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    if not isinstance(apart, dict):
        yield f"{path}.podAntiAffinity: it must be an object"
    elif not isinstance(apart.get(required, []), list):
        yield f"{path}.podAntiAffinity.{required}: it must be a list"


def _names(values: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"'{value}'" for value in values) + "]"


_OWN_KEY = f"{_names(OWN_KEYS)}.exists(p, k.startsWith(p))"


class PodVolume(Spec):
    """Volume of a pod, with exactly one source. The fields are named as in Kubernetes."""

    name: str = Field(min_length=1, max_length=63, pattern=LABEL)
    """Name of the volume."""
    config_map: FreeForm | None = None
    """ConfigMap in the namespace of the pods: `{name: NAME}`."""
    csi: FreeForm | None = None
    """Volume from a CSI driver. The volume is deleted with the pod."""
    empty_dir: FreeForm | None = None
    """Empty folder that is deleted with the pod: `{sizeLimit: 10Gi}`."""
    ephemeral: FreeForm | None = None
    """PersistentVolumeClaim that is deleted with the pod: `{volumeClaimTemplate: {...}}`."""
    image: FreeForm | None = None
    """Files of a container image: `{reference: REFERENCE}`."""
    nfs: FreeForm | None = None
    """Share of an NFS server: `{server: HOST, path: PATH}`."""
    persistent_volume_claim: FreeForm | None = None
    """PersistentVolumeClaim in the namespace of the pods: `{claimName: NAME}`."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "name",
            f"!(self.name in {_names(OWN_VOLUMES)}) && !self.name.startsWith('{OWN_VOLUME_PREFIX}')",
            "name is used by one of the operator's volumes: choose another name",
            lambda v: not is_own_volume(v.name),
            of_admitted=True,
        ),
        Rule(
            "name",
            f"[{', '.join(f'has(self.{source})' for source in SOURCES)}].exists_one(h, h)",
            f"set exactly one source of the volume: {', '.join(SOURCES)}",
            lambda v: sum(getattr(v, snake(source)) is not None for source in SOURCES) == 1,
            of_admitted=True,
        ),
    )


class PodVolumeMount(Spec):
    """Mount of a volume in the role's main container."""

    name: str = Field(min_length=1, max_length=63, pattern=LABEL)
    """Name of the volume in `volumes`."""
    mount_path: str = Field(min_length=2, max_length=1024, pattern=r"^/[^:]*$")
    """Folder in the container."""
    sub_path: str | None = Field(default=None, min_length=1, max_length=1024)
    """Folder in the volume. Defaults to the root of the volume."""
    read_only: bool = False
    """Mounts the volume read-only."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "mountPath",
            f"!self.mountPath.matches('{UNUSUAL_PATH}')",
            "mountPath must not contain // or the path segments . and ..",
            lambda m: re.search(UNUSUAL_PATH, m.mount_path) is None,
            of_admitted=True,
        ),
        Rule(
            "mountPath",
            f"!{_names(OWN_PATHS)}.exists(p, self.mountPath == p || self.mountPath.startsWith(p + '/'))",
            f"mountPath must not be in a folder of the operator's volumes: {', '.join(OWN_PATHS)}",
            lambda m: not is_own_path(m.mount_path),
            of_admitted=True,
        ),
    )


class MeshInjection(StrEnum):
    """Handling of sidecar proxies that a service mesh injects into pods."""

    native = "Native"
    refused = "Refused"


class PodShape(Spec):
    """Placement, labels, annotations and volumes of the pods of one role."""

    node_selector: dict[str, LabelValue] = Field(default_factory=dict, max_length=32)
    """Labels that a node must have to run the pods."""
    tolerations: list[Toleration] = Field(default_factory=list, max_length=32)
    """Tolerations of the pods."""
    affinity: FreeForm = Field(default_factory=dict)
    """Affinity of the pods. Pods of a trainer with several nodes also get an anti-affinity that keeps them on different
    nodes.
    """
    topology_spread_constraints: list[FreeForm] = Field(default_factory=list, max_length=8)
    """Topology spread constraints of the pods. A constraint without a labelSelector applies to the pods of the same component of a run, or of the same pool."""  # noqa: E501
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pods, for example nvidia. If unset, the pods use the default runtime of their nodes."""
    scheduler_name: ObjectName | None = None
    """Scheduler of the pods. Defaults to the cluster's default scheduler."""
    priority_class_name: ObjectName | None = None
    """Default PriorityClass of the pods, for runs that do not set priorityClassName."""
    labels: dict[str, LabelValue] = Field(default_factory=dict, max_length=32)
    """Additional labels of the pods."""
    annotations: dict[str, Annotation] = Field(default_factory=dict, max_length=32)
    """Additional annotations of the pods. They override the operator's annotations that keep autoscalers from
    evicting the pods.
    """
    mesh_injection: MeshInjection | None = Field(default=None, strict=False)
    """Proxies of a service mesh: Native asks Istio and Linkerd for a native sidecar, which starts before the other containers and ends with them; Refused asks Istio, Linkerd, Kuma and Consul not to inject one. If unset, the namespace decides."""  # noqa: E501
    volumes: list[PodVolume] = Field(default_factory=list, max_length=16, json_schema_extra={LIST_MAP_KEYS: ["name"]})
    """Additional volumes of the pods."""
    volume_mounts: list[PodVolumeMount] = Field(
        default_factory=list, max_length=16, json_schema_extra={LIST_MAP_KEYS: ["mountPath"]}
    )
    """Mounts of the volumes in the role's main container."""

    @field_validator("affinity")
    @classmethod
    def _can_be_extended(cls, affinity: FreeForm) -> FreeForm:
        # The API server does not know the fields of a free-form object, so a CEL rule cannot check them.
        if problems := list(misshapen_affinity(affinity)):
            raise PydanticCustomError("misshapen", "{message}", {"message": "; ".join(problems)})
        return affinity

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "labels",
            f"!self.labels.exists(k, {_OWN_KEY})",
            f"labels must not begin with {' or '.join(OWN_KEYS)}: the operator and NetworkPolicies select pods by them",
            lambda s: not any(map(is_own_key, s.labels)),
            of_admitted=True,
        ),
        Rule(
            "annotations",
            f"!self.annotations.exists(k, {_OWN_KEY})",
            f"annotations must not begin with {' or '.join(OWN_KEYS)}: only the operator sets them",
            lambda s: not any(map(is_own_key, s.annotations)),
            of_admitted=True,
        ),
        Rule(
            "volumeMounts",
            "self.volumeMounts.all(m, self.volumes.exists(v, v.name == m.name))",
            "each entry of volumeMounts must name a volume in `volumes`",
            lambda s: {m.name for m in s.volume_mounts} <= {v.name for v in s.volumes},
            of_admitted=True,
        ),
    )
