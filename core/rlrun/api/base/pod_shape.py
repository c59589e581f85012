"""Shape of the pods of one role: placement, labels, annotations and volumes, as a platform team sets them.

The fields are those of Kubernetes. An RLModel has them for trainers and engines, the chart for the other roles.
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
"""Containers that the operator puts into the pods of each role. The others are those of a podTemplate, or were
injected, for example by a mesh."""
OWN_KEYS = ("rlrun.dev/", "app.kubernetes.io/")
"""Begin of the labels by which operator, Services and NetworkPolicies find pods, and of the operator's annotations."""
OWN_VOLUMES = (
    "tmp", "shm", "cache", "models", "adapters", "config", "spool", "package", "order", "engine-access", "ca-bundle",
)  # fmt: skip
"""Names of the volumes that the operator puts into pods, beside those that begin with `storage-token-`."""
OWN_VOLUME_PREFIX = "storage-token-"
OWN_PATHS = ("/tmp", "/dev/shm", "/cache", "/models", "/adapters", "/environment", "/engine-access", "/var/spool/rlrun",
             "/etc/rlrun", "/etc/rlrun-ca", "/var/run/secrets", "/run/secrets")  # fmt: skip
"""Folders of the operator's volumes. `/var/run` is a link to `/run` in most images."""
UNUSUAL_PATH = "//|/[.][.]?(/|$)"
"""Parts of a path that name a folder in another way than its own."""
SOURCES = ("configMap", "csi", "emptyDir", "ephemeral", "image", "nfs", "persistentVolumeClaim")

Annotation = Annotated[str, Field(max_length=4096)]
FreeForm = Annotated[dict[str, Any], Field(max_length=64)]


def is_own_key(key: str) -> bool:
    """Return whether the label or annotation is one of those that only the operator sets."""
    return key.startswith(OWN_KEYS)


def is_own_volume(name: str) -> bool:
    """Return whether the operator has a volume of this name."""
    return name in OWN_VOLUMES or name.startswith(OWN_VOLUME_PREFIX)


def is_own_path(path: str) -> bool:
    """Return whether the path is, or is below, a folder of the operator's volumes."""
    plain = "/" + posixpath.normpath(path).lstrip("/")
    return f"{plain}/".startswith(tuple(f"{folder}/" for folder in OWN_PATHS))


def misshapen_affinity(affinity: Any, path: str = "affinity") -> Iterator[str]:
    """Yield the fields of an affinity with the wrong type, among those that the operator reads."""
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
    """Volume of a pod, with one source. Its fields are those of Kubernetes."""

    name: str = Field(min_length=1, max_length=63, pattern=LABEL)
    """Name of the volume."""
    config_map: FreeForm | None = None
    """ConfigMap in the namespace of the pods: `{name: NAME}`."""
    csi: FreeForm | None = None
    """Volume of a CSI driver that ends with the pod."""
    empty_dir: FreeForm | None = None
    """Empty folder that ends with the pod: `{sizeLimit: 10Gi}`."""
    ephemeral: FreeForm | None = None
    """PersistentVolumeClaim that ends with the pod: `{volumeClaimTemplate: {...}}`."""
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
            "name is that of a volume of the operator: choose another one",
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
    """Mount of a volume in the container of the role."""

    name: str = Field(min_length=1, max_length=63, pattern=LABEL)
    """Name of the volume in `volumes`."""
    mount_path: str = Field(min_length=2, max_length=1024, pattern=r"^/[^:]*$")
    """Folder in the container."""
    sub_path: str | None = Field(default=None, min_length=1, max_length=1024)
    """Folder in the volume. Unset: the whole volume."""
    read_only: bool = False
    """Allows no changes of the files."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "mountPath",
            f"!self.mountPath.matches('{UNUSUAL_PATH}')",
            "mountPath must be written without //, . and ..",
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
    """Handling of proxies that a service mesh puts into pods."""

    native = "Native"
    refused = "Refused"


class PodShape(Spec):
    """Placement, labels, annotations and volumes of the pods of one role."""

    node_selector: dict[str, LabelValue] = Field(default_factory=dict, max_length=32)
    """Labels that a node must have to run the pods."""
    tolerations: list[Toleration] = Field(default_factory=list, max_length=32)
    """Tolerations of the pods."""
    affinity: FreeForm = Field(default_factory=dict)
    """Affinity of the pods. The pods of a trainer with several nodes get a rule against sharing a node in addition."""
    topology_spread_constraints: list[FreeForm] = Field(default_factory=list, max_length=8)
    """Topology spread constraints of the pods. Without a labelSelector they hold for the pods of the same role of the same run."""  # noqa: E501
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pods, for example nvidia where it is not the default of the nodes. Unset: the cluster's default."""  # noqa: E501
    scheduler_name: ObjectName | None = None
    """Scheduler of the pods. Unset: the cluster's default."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods, for runs that name none."""
    labels: dict[str, LabelValue] = Field(default_factory=dict, max_length=32)
    """Additional labels of the pods."""
    annotations: dict[str, Annotation] = Field(default_factory=dict, max_length=32)
    """Additional annotations of the pods. They replace those by which autoscalers do not evict the pods."""
    mesh_injection: MeshInjection | None = Field(default=None, strict=False)
    """Proxies of a service mesh: Native asks Istio and Linkerd for a native sidecar, which starts before the other containers and ends with them; Refused asks Istio, Linkerd, Kuma and Consul for none. Unset: as the namespace says."""  # noqa: E501
    volumes: list[PodVolume] = Field(default_factory=list, max_length=16, json_schema_extra={LIST_MAP_KEYS: ["name"]})
    """Additional volumes of the pods."""
    volume_mounts: list[PodVolumeMount] = Field(
        default_factory=list, max_length=16, json_schema_extra={LIST_MAP_KEYS: ["mountPath"]}
    )
    """Mounts of these volumes in the container of the role."""

    @field_validator("affinity")
    @classmethod
    def _can_be_extended(cls, affinity: FreeForm) -> FreeForm:
        # The API server knows no fields of a free-form object, so that no rule in CEL can check it.
        if problems := list(misshapen_affinity(affinity)):
            raise PydanticCustomError("misshapen", "{message}", {"message": "; ".join(problems)})
        return affinity

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "labels",
            f"!self.labels.exists(k, {_OWN_KEY})",
            f"labels must not begin with {' or '.join(OWN_KEYS)}: operator and NetworkPolicies find pods by them",
            lambda s: not any(map(is_own_key, s.labels)),
            of_admitted=True,
        ),
        Rule(
            "annotations",
            f"!self.annotations.exists(k, {_OWN_KEY})",
            f"annotations must not begin with {' or '.join(OWN_KEYS)}: they are the operator's own",
            lambda s: not any(map(is_own_key, s.annotations)),
            of_admitted=True,
        ),
        Rule(
            "volumeMounts",
            "self.volumeMounts.all(m, self.volumes.exists(v, v.name == m.name))",
            "volumeMounts must name volumes of `volumes`",
            lambda s: {m.name for m in s.volume_mounts} <= {v.name for v in s.volumes},
            of_admitted=True,
        ),
    )
