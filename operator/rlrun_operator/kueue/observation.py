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
    flavors: Mapping[str, Obj] = field(default_factory=dict)
    """ResourceFlavors of the admitted Workload, by name."""
    priority: WorkloadPriority | None = None
    """Priority of the run. None: it names no class."""
    priority_problem: Problem | None = None
    """Reason why the run's class of priority cannot be used."""
    flavor_problem: Problem | None = None
    """Reason why `flavors` is not complete."""
    problem: Problem | None = None
    """Reason why the Workloads are unknown. Nothing else is set then."""
