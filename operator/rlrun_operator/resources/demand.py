"""Demand of a run: the pods of all its roles and their total resource requests."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rlrun.constants import Driver
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
"""Placeholder key for grants that are never used."""


def workloads(identity: RunIdentity, settings: OperatorSettings, resolved: ResolvedRun) -> list[Obj]:
    """Return the ReplicaSets and Jobs of one attempt, without valid grants for rlrun-server and the egress proxy."""
    if resolved.spec.driver is Driver.client:
        return []
    storage = StorageAccess.of_run(identity, settings, resolved, NO_KEY)
    made = [] if resolved.trains_in_pool else trainer(identity, settings, resolved, storage)
    if resolved.endpoints.pool is None:
        made += inference(identity, settings, resolved, storage)
    for item in environment_entries(resolved.spec):
        plain = replace(item, entry=item.entry.model_copy(update={"egress": []}))
        made += environment(identity, settings, resolved, plain)
    made += orchestrator(identity, settings, resolved, storage)
    return [obj for obj in made if obj["kind"] in POD_CONTROLLERS]


def pod_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return the requests that the scheduler counts for a pod, by resource in thousandths.

    Containers run at the same time, after the init containers, which run one by one. An init container that always
    restarts (a native sidecar) runs at the same time as all containers after it. A missing request defaults to the
    limit.
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
