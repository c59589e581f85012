"""Has the orchestrator spoken its last word? Its exit code and termination message outlive it in the pod's status."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rlrun.constants import ExitCode, Reason
from rlrun.kube.conditions import parse_time
from rlrun.kube.objects import Obj
from rlrun.kube.pods import role_of, termination_of
from rlrun.protocol.orchestrator import RunStatus
from rlrun.protocol.problem import Problem

from rlrun_operator.planning.diagnosis.pod_diagnostics import last_word, told_problem


@dataclass(frozen=True)
class Ending:
    """The end of a run, as its orchestrator tells it."""

    finished_at: datetime | None
    last: RunStatus | None = None
    problem: Problem | None = None
    """None means: completed."""


def find_ending(job: Obj | None, pods: Sequence[Obj]) -> Ending | None:
    """`pods` are those of the attempt; None while the orchestrator runs or will run again."""
    newest_first = sorted(
        (p for p in pods if role_of(p) == "orchestrator"),
        key=lambda p: p["metadata"].get("creationTimestamp") or "",
        reverse=True,
    )
    ends = [end for end in (termination_of(p, "orchestrator") for p in newest_first) if end is not None]
    for end in ends:
        if end.exit_code == 0:
            return Ending(end.finished_at, last_word(end.message))
        if end.exit_code == ExitCode.CONFIGURATION:
            problem = told_problem(end.message) or Problem(
                reason=Reason.INVALID_CONFIGURATION,
                message=f"the orchestrator found a mistake that no restart mends: {end.message.strip()[-500:]}",
            )
            return Ending(end.finished_at, last_word(end.message), problem)
    for condition in (job or {}).get("status", {}).get("conditions") or []:
        if condition.get("status") != "True":
            continue
        when = parse_time(condition.get("lastTransitionTime"))
        if condition["type"] == "Complete":
            return Ending(when)
        if condition["type"] == "Failed":
            told = next((p for p in (told_problem(e.message) for e in ends) if p), None)
            return Ending(
                when,
                next((s for s in (last_word(e.message) for e in ends) if s), None),
                told
                or Problem(
                    reason=Reason.ORCHESTRATOR_FAILED,
                    message=f"the orchestrator's Job failed: {condition.get('message') or condition.get('reason')}",
                ),
            )
    return None
