"""Demand of a run: the pods of all its roles, and the resources that they request in all."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rlrun.constants import Role
from rlrun.kube.kinds import POD_CONTROLLERS
from rlrun.kube.objects import Obj
from rlrun.protocol.resolved import ResolvedRun

from rlrun_operator.config.quantities import to_millis
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.environment import environment, environment_entries
from rlrun_operator.resources.inference import inference
from rlrun_operator.resources.orchestrator import orchestrator
from rlrun_operator.resources.trainer import trainer

NO_KEY = bytes(32)
"""Key of grants that are never used."""


@dataclass(frozen=True)
class PodSet:
    """Pods of one workload of a run, which are all alike."""

    role: Role
    component: str
    count: int
    template: Obj
    """Template of the pods, as in the workload."""


def pod_sets(identity: RunIdentity, settings: OperatorSettings, resolved: ResolvedRun) -> list[PodSet]:
    """Return the pods of one attempt. The templates have no valid grants for rlrun-server and the egress proxy."""
    storage = StorageAccess.of_run(identity, settings, resolved, NO_KEY)
    by_role = [(Role.trainer, trainer(identity, settings, resolved, storage))]
    by_role.append((Role.inference, inference(identity, settings, resolved, storage)))
    for item in environment_entries(resolved.spec):
        plain = replace(item, entry=item.entry.model_copy(update={"egress": []}))
        by_role.append((Role.environment, environment(identity, settings, resolved, plain)))
    by_role.append((Role.orchestrator, orchestrator(identity, settings, resolved, storage)))
    return [
        PodSet(role, component, obj["spec"].get("replicas", obj["spec"].get("parallelism", 1)), obj["spec"]["template"])
        for role, objects in by_role
        for obj in objects
        if obj["kind"] in POD_CONTROLLERS
        for component in [obj["spec"]["template"]["metadata"]["labels"]["rlrun.dev/component"]]
    ]


def pod_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return what the scheduler counts for a pod, by resource in thousandths.

    Its containers run together, after its init containers one by one. An init container that always restarts, a native
    sidecar, runs beside all that follow it. A limit without a request is the request.
    """
    sidecars: list[Mapping[str, Any]] = []
    largest: Counter[str] = Counter()
    for container in spec.get("initContainers") or []:
        largest |= _sum([*sidecars, container])  # Counter: the maximum of each resource
        sidecars += [container] if container.get("restartPolicy") == "Always" else []
    return dict(_sum([*sidecars, *spec["containers"]]) | largest)


def _sum(containers: Iterable[Mapping[str, Any]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for container in containers:
        resources = container.get("resources") or {}
        requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, quantity in requests.items():
            total[name] += to_millis(str(quantity))
    return total
