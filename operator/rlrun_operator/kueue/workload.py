"""Workload of a run, with which Kueue admits all pods of the run at once.

One Workload represents all pods, so that a run gets quota for all of them or for none. It has one pod set per role,
which contains the pods' requests and placement, but not their variables, images and volumes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlrun.constants import HASH_ANNOTATION, Role
from rlrun.kube.kinds import JOB, POD_CONTROLLERS, WORKLOAD
from rlrun.kube.objects import Obj
from rlrun.kube.pods import role_of
from rlrun.protocol.problem import Problem

from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.base.object_digest import digest_of

POD_SETS = {
    Role.trainer: "trainer",
    Role.inference: "inference",
    Role.environment: "environments",
    Role.orchestrator: "orchestrator",
}
"""Names of the pod sets. The pods of all environments have the same size, so they are one set."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label with the LocalQueue of an RLRun. Kueue's webhooks ignore the pods of a labeled owner."""
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
"""Label with the WorkloadPriorityClass of an RLRun."""
OWNER_UID_LABEL = "kueue.x-k8s.io/job-uid"
OWNER_KIND_ANNOTATION = "kueue.x-k8s.io/job-owner-gvk"
OWNER_NAME_ANNOTATION = "kueue.x-k8s.io/job-owner-name"
POD_SET_LABEL = "kueue.x-k8s.io/podset"

MAX_NAME = 63
"""Maximum length of a Workload's name, because Kueue uses names as label values."""
CONTAINER_FIELDS = ("name", "resources", "restartPolicy")
POD_FIELDS = (
    "nodeSelector", "tolerations", "affinity", "runtimeClassName", "priorityClassName", "resourceClaims",
    "topologySpreadConstraints",
)  # fmt: skip


@dataclass(frozen=True)
class WorkloadPriority:
    """Value of a priority, and the priority class that defines it."""

    kind: str
    """WorkloadPriorityClass or PriorityClass."""
    name: str
    value: int

    @property
    def reference(self) -> dict[str, str]:
        """Reference to the priority class, in the format of a Workload's `priorityClassRef`."""
        group = "kueue.x-k8s.io" if self.kind == "WorkloadPriorityClass" else "scheduling.k8s.io"
        return {"group": group, "kind": self.kind, "name": self.name}


@dataclass(frozen=True)
class KueueObservation:
    """State of a run's Workloads and of the objects that they name, as read from the API server."""

    workloads: tuple[Obj, ...] = ()
    """All Workloads of the run."""
    flavors: Mapping[str, Obj] | Problem = field(default_factory=dict)
    """ResourceFlavors of the admitted Workload by name, or the reason why one is missing."""
    priority: WorkloadPriority | Problem | None = None
    """Priority of the run, or the reason why its class cannot be used. None if the run names no class."""
    problem: Problem | None = None
    """Reason why the Workloads are unknown. If set, all other fields are empty."""


def workload_name(identity: RunIdentity) -> str:
    """Return the name of the Workload of this attempt."""
    end = f"-{identity.uid.replace('-', '')[:5]}-{identity.attempt}"
    return f"rlrun-{identity.name}"[: MAX_NAME - len(end)].rstrip("-.") + end


def workload(
    identity: RunIdentity, queue: str, children: Sequence[Obj], priority: WorkloadPriority | None = None
) -> Obj:
    """Return the Workload for the pods of the run's children.

    Args:
        identity: Attempt that starts when the Workload is admitted.
        queue: Name of a LocalQueue in the run's namespace.
        children: All children of the attempt, with the placement from the spec and the RLModel.
        priority: Priority in the queue and for preemption. Defaults to 0.
    """
    metadata = identity.metadata(workload_name(identity))
    spec: dict[str, Any] = {"queueName": queue, "podSets": pod_sets(children)}
    if priority is not None:
        spec |= {"priority": priority.value, "priorityClassRef": priority.reference}
    metadata["labels"][OWNER_UID_LABEL] = identity.uid
    owner = identity.owner_reference()
    group, _, version = owner["apiVersion"].partition("/")
    metadata["annotations"] |= {
        OWNER_KIND_ANNOTATION: f"{group}/{version}, Kind={owner['kind']}",
        OWNER_NAME_ANNOTATION: identity.name,
        HASH_ANNOTATION: digest_of(spec),
    }
    return {"apiVersion": WORKLOAD.api_version, "kind": WORKLOAD.kind, "metadata": metadata, "spec": spec}


def pod_sets(children: Sequence[Obj]) -> list[Obj]:
    """Return the pod sets of the ReplicaSets and Jobs among the children, in the order of `POD_SETS`."""
    by_name: dict[str, Obj] = {}
    for child in children:
        if child["kind"] not in POD_CONTROLLERS:
            continue
        name = pod_set_of(child)
        made = by_name.setdefault(name, {"name": name, "count": 0, "template": _template(child["spec"]["template"])})
        made["count"] += pod_count(child)
    return [by_name[name] for name in POD_SETS.values() if name in by_name]


def pod_set_of(child: Obj) -> str:
    """Return the name of the pod set for the pods of a ReplicaSet or Job."""
    return POD_SETS[Role(role_of(child))]


def pod_count(child: Obj) -> int:
    """Return the number of pods of a ReplicaSet or Job."""
    spec: Mapping[str, Any] = child["spec"]
    return int(spec["parallelism"] if child["kind"] == JOB.kind else spec["replicas"])


def _template(template: Obj) -> Obj:
    spec = template["spec"]
    made: Obj = {key: spec[key] for key in POD_FIELDS if spec.get(key)}
    for key in ("initContainers", "containers"):
        if spec.get(key):
            made[key] = [{k: c[k] for k in CONTAINER_FIELDS if c.get(k)} for c in spec[key]]
    return {"spec": made}
