"""State of a run's place in a queue of Kueue, as read from the API server."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlrun.kube.objects import Obj
from rlrun.protocol.problem import Problem

from rlrun_operator.kueue.workload import WorkloadPriority


@dataclass(frozen=True)
class KueueObservation:
    """State of a run's Workloads and of the objects that they name."""

    workloads: tuple[Obj, ...] = ()
    """All Workloads of the run."""
    flavors: Mapping[str, Obj] | Problem = field(default_factory=dict)
    """ResourceFlavors of the admitted Workload, by name, or the reason why they are not complete."""
    priority: WorkloadPriority | Problem | None = None
    """Priority of the run, or the reason why its class cannot be used. None: it names no class."""
    problem: Problem | None = None
    """Reason why the Workloads are unknown. Nothing else is set then."""
