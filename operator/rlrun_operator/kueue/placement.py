"""Placement of admitted pods: node labels and tolerations of the flavors from which a Workload got its quota.

Quota of one flavor must not be used on nodes of another. Pods therefore get the node labels of their flavors as
nodeSelector, as Kueue does for its own kinds.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlrun.constants import Reason
from rlrun.kube.kinds import POD_CONTROLLERS
from rlrun.kube.objects import Obj
from rlrun.protocol.problem import Problem

from rlrun_operator.kueue.workload import POD_SET_LABEL, pod_set_of


@dataclass(frozen=True)
class Placement:
    """Additions to the pod template of one pod set."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Obj, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class PlacementConflict(Exception):
    """Raised if a pod would need two values for one key. `problem` describes the conflict."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def flavor_names(workload: Obj) -> list[str]:
    """Return the names of the flavors assigned to the Workload, without duplicates."""
    assignments = _assignments(workload)
    return list(dict.fromkeys(name for one in assignments for name in (one.get("flavors") or {}).values()))


def placements(workload: Obj, flavors: Mapping[str, Obj]) -> dict[str, Placement]:
    """Return the placement of each pod set of an admitted Workload, by name.

    Args:
        workload: The Workload with its admission and the updates of its admission checks.
        flavors: ResourceFlavors by name. Must contain every name in `flavor_names(workload)`.

    Raises:
        PlacementConflict: Flavors or admission checks contradict each other.
    """
    by_component: dict[str, Placement] = {}
    checks = (workload.get("status") or {}).get("admissionChecks") or []
    updates = [update for check in checks for update in check.get("podSetUpdates") or []]
    for assignment in _assignments(workload):
        name = str(assignment["name"])
        specs = [flavors[f].get("spec") or {} for f in dict.fromkeys((assignment.get("flavors") or {}).values())]
        parts = [
            Placement({}, (), {POD_SET_LABEL: name}),
            *(Placement(s.get("nodeLabels") or {}, tuple(s.get("tolerations") or ())) for s in specs),
            *(_placement_in(u, u) for u in updates if u.get("name") == name),
        ]
        by_component[name] = _merge(name, parts)
    return by_component


def place(children: Sequence[Obj], placed: Mapping[str, Placement]) -> list[Obj]:
    """Return the children with the placements in `placed` added to their pod templates. Raises PlacementConflict."""
    return [_place(c, placed) if c["kind"] in POD_CONTROLLERS else c for c in children]


def _place(child: Obj, placed: Mapping[str, Placement]) -> Obj:
    name = pod_set_of(child)
    if name not in placed:
        return child
    made = copy.deepcopy(child)
    template = made["spec"]["template"]
    metadata, spec = template["metadata"], template["spec"]
    merged = _merge(name, [_placement_in(spec, metadata), placed[name]])
    metadata["labels"] = dict(merged.labels)
    if merged.annotations:
        metadata["annotations"] = dict(merged.annotations)
    if merged.node_selector:
        spec["nodeSelector"] = dict(merged.node_selector)
    if merged.tolerations:
        spec["tolerations"] = list(merged.tolerations)
    return made


def _assignments(workload: Obj) -> list[Obj]:
    admission: Mapping[str, Any] = (workload.get("status") or {}).get("admission") or {}
    return list(admission.get("podSetAssignments") or [])


def _placement_in(spec: Obj, metadata: Obj) -> Placement:
    """Return the placement in a pod's `spec` and `metadata`. A pod set update contains both in one object."""
    return Placement(
        spec.get("nodeSelector") or {},
        tuple(spec.get("tolerations") or ()),
        metadata.get("labels") or {},
        metadata.get("annotations") or {},
    )


def _merge(name: str, parts: Sequence[Placement]) -> Placement:
    tolerations: list[Obj] = []
    for part in parts:
        tolerations += [t for t in part.tolerations if t not in tolerations]
    return Placement(
        _join(name, "nodeSelector", [p.node_selector for p in parts]),
        tuple(tolerations),
        _join(name, "label", [p.labels for p in parts]),
        _join(name, "annotation", [p.annotations for p in parts]),
    )


def _join(name: str, what: str, parts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for part in parts:
        for key, value in part.items():
            if joined.setdefault(key, value) != value:
                raise PlacementConflict(
                    Problem(
                        reason=Reason.PLACEMENT_CONFLICT,
                        message=f"Kueue admitted the run, but the {what} {key} of the {name} pods would need two "
                        f"values: {joined[key]!r} and {value!r}. Correct the RLModel's nodeSelector, the labels of the "
                        "queue's ResourceFlavors, or the pod set updates of the queue's admission checks.",
                    )
                )
    return joined
