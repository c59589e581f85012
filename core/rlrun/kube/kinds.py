"""Kinds of objects that the project reads and writes, and their URL paths."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from rlrun.constants import GROUP, VERSION
from rlrun.kube.errors import ApiError


@dataclass(frozen=True)
class ResourceKind:
    """Kind of Kubernetes object. An empty `group` is the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Value of `apiVersion`, such as `v1` or `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of an object, or of the collection if `name` is None.

        Names and namespaces are quoted. Raises ApiError for `.` and `..`, which remain path segments when quoted.
        """
        parts = ["/apis" if self.group else "/api", self.api_version]
        if self.namespaced and namespace:
            parts += ["namespaces", _segment(namespace)]
        parts += [self.plural, *([_segment(name)] if name else []), *([subresource] if subresource else [])]
        return "/".join(parts)


def _segment(name: str) -> str:
    if name in (".", ".."):
        raise ApiError(404, "NotFound", f"{name!r} cannot be the name of an object")
    return quote(name, safe="")


RLRUN = ResourceKind(GROUP, VERSION, "rlruns", "RLRun")
RLMODEL = ResourceKind(GROUP, VERSION, "rlmodels", "RLModel", namespaced=False)
RLCHECKPOINT = ResourceKind(GROUP, VERSION, "rlcheckpoints", "RLCheckpoint")
RLADAPTER = ResourceKind(GROUP, VERSION, "rladapters", "RLAdapter")
JOB = ResourceKind("batch", "v1", "jobs", "Job")
REPLICA_SET = ResourceKind("apps", "v1", "replicasets", "ReplicaSet")
DEPLOYMENT = ResourceKind("apps", "v1", "deployments", "Deployment")
SERVICE = ResourceKind("", "v1", "services", "Service")
NETWORK_POLICY = ResourceKind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
CONFIG_MAP = ResourceKind("", "v1", "configmaps", "ConfigMap")
SECRET = ResourceKind("", "v1", "secrets", "Secret")
SERVICE_ACCOUNT = ResourceKind("", "v1", "serviceaccounts", "ServiceAccount")
POD = ResourceKind("", "v1", "pods", "Pod")
CLAIM = ResourceKind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
EVENT = ResourceKind("", "v1", "events", "Event")
NAMESPACE = ResourceKind("", "v1", "namespaces", "Namespace", namespaced=False)
NODE = ResourceKind("", "v1", "nodes", "Node", namespaced=False)
PRIORITY_CLASS = ResourceKind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
LEASE = ResourceKind("coordination.k8s.io", "v1", "leases", "Lease")
ACCESS_REVIEW = ResourceKind(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
SELF_ACCESS_REVIEW = ResourceKind(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
SELF_REVIEW = ResourceKind("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)
ROLE_BINDING = ResourceKind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
STORAGE_CLASS = ResourceKind("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
RUNTIME_CLASS = ResourceKind("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
RESOURCE_QUOTA = ResourceKind("", "v1", "resourcequotas", "ResourceQuota")
TOKEN_REVIEW = ResourceKind("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)

WORKLOAD = ResourceKind("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
RESOURCE_FLAVOR = ResourceKind("kueue.x-k8s.io", "v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False)
WORKLOAD_PRIORITY_CLASS = ResourceKind(
    "kueue.x-k8s.io", "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False
)

ARTIFACTS = (RLCHECKPOINT, RLADAPTER)
"""Kinds of the objects that record a run's artifacts."""
CHILDREN = (JOB, REPLICA_SET, SERVICE, NETWORK_POLICY, CONFIG_MAP, SECRET, SERVICE_ACCOUNT)
"""Kinds of a run's children in the order in which they are deleted: first the Job, whose process writes files."""
POD_CONTROLLERS = (REPLICA_SET.kind, JOB.kind)
"""Kinds of the children that create pods."""

ALL: Mapping[str, ResourceKind] = {
    kind.kind: kind
    for kind in (
        RLRUN,
        RLMODEL,
        *ARTIFACTS,
        *CHILDREN,
        DEPLOYMENT,
        POD,
        CLAIM,
        EVENT,
        LEASE,
        NAMESPACE,
        NODE,
        PRIORITY_CLASS,
        TOKEN_REVIEW,
        ACCESS_REVIEW,
        SELF_ACCESS_REVIEW,
        SELF_REVIEW,
        ROLE_BINDING,
        STORAGE_CLASS,
        RUNTIME_CLASS,
        RESOURCE_QUOTA,
        WORKLOAD,
        RESOURCE_FLAVOR,
        WORKLOAD_PRIORITY_CLASS,
    )
}
"""Every kind by its name."""


def ref_of(obj: Mapping[str, Any]) -> tuple[ResourceKind, str | None, str]:
    """Return the kind, namespace and name of an object. Raises KeyError if its kind is not in `ALL`."""
    metadata = obj["metadata"]
    return ALL[obj["kind"]], metadata.get("namespace"), metadata.get("name", "")
