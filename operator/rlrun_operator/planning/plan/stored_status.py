"""Single fields of a run's status as the API server sends it.

A list of all runs has thousands of finished ones, and the whole status takes 0.2 ms of CPU time to parse.
"""

from datetime import datetime

from rlrun.api.base.phases import Phase
from rlrun.kube.conditions import parse_time
from rlrun.kube.objects import Obj, phase_of

PHASES = {phase.value: phase for phase in Phase}


def stored_phase(run: Obj) -> Phase | None:
    """Return the phase, or None if the run has none yet."""
    return PHASES.get(phase_of(run))


def is_finished(run: Obj) -> bool:
    """Return whether the run has ended."""
    phase = stored_phase(run)
    return phase is not None and phase.finished


def completion_time(run: Obj) -> datetime | None:
    """Return the time at which the run ended. None: unknown."""
    try:
        return parse_time((run.get("status") or {}).get("completionTime"))
    except (TypeError, ValueError):
        return None
