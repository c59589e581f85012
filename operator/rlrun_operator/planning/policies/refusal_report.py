"""Report of the objects of a plan that could not be written, in the run's status."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

from rlrun.api.base.kubernetes_types import Condition
from rlrun.api.run_status import Phase, RLRunStatus
from rlrun.constants import ConditionType, Reason
from rlrun.kube.conditions import find_condition, seconds
from rlrun.kube.refusals import ObjectRefused
from rlrun.protocol.problem import Problem

from rlrun_operator.planning.diagnosis.readiness import blocking_problem
from rlrun_operator.planning.plan.actions import ConditionChange, Plan, StatusChange
from rlrun_operator.planning.plan.status_builder import apply_change, is_true, reason_fields

APPLIED = ConditionType.CHILDREN_APPLIED
ACTIVE = (Phase.pending, Phase.queued, Phase.running)
LONGEST_PAUSE = 60.0
"""Seconds between two attempts to write a refused object. The pause is as long as the refusal has lasted."""


def report_refusals(plan: Plan, refusals: Sequence[ObjectRefused], now: datetime) -> Plan:
    """Return the plan with a status that tells which object was refused, or that none is refused any more."""
    status = plan.status
    if status is None:
        return plan
    known = find_condition(status, APPLIED)
    if not refusals:
        if known is None or is_true(status, APPLIED) or not (plan.writes_children or plan.artifact_applies):
            return plan
        status = apply_change(status, StatusChange((ConditionChange(APPLIED, True, Reason.APPLIED),)), now)
        return replace(plan, status=_with_reason(status, {known.reason}, now))
    problem = _settled(refusals[0], known)
    change = StatusChange((ConditionChange(APPLIED, False, problem.reason, problem.message),))
    status = _without_artifacts(apply_change(status, change, now), {refusal.object for refusal in refusals})
    pause = min(LONGEST_PAUSE, max(1.0, seconds(_since(status), now)))
    if status.phase is not Phase.pending and plan.requeue_after is not None:
        pause = min(pause, plan.requeue_after)
    replaced = {None, Reason.STARTING, None if known is None else known.reason}
    return replace(plan, status=_with_reason(status, replaced, now), requeue_after=pause)


def _settled(refusal: ObjectRefused, known: Condition | None) -> Problem:
    """Return the known problem if it is about the same object.

    The API server's message may have other numbers each time, and every write of the status causes another reconcile.
    """
    new = refusal.problem
    _, name = refusal.object
    if known is not None and known.reason == new.reason and f"/{name}" in known.message:
        return Problem(reason=new.reason, message=known.message)
    return new


def _with_reason(status: RLRunStatus, replaced: Collection[str | None], now: datetime) -> RLRunStatus:
    """Return the status with the problem that blocks the run as its reason, if its reason is one to replace."""
    if status.phase not in ACTIVE or status.reason not in replaced:
        return status
    return apply_change(status, StatusChange(fields=reason_fields(blocking_problem(status))), now)


def _without_artifacts(status: RLRunStatus, refused: set[tuple[str, str]]) -> RLRunStatus:
    """Return the status without the artifacts whose objects do not exist, because other runs could not use them."""
    checkpoints = [c for c in status.checkpoints if ("RLCheckpoint", c.name) not in refused]
    adapters = [a for a in status.adapters if ("RLAdapter", a.name) not in refused]
    if len(checkpoints) == len(status.checkpoints) and len(adapters) == len(status.adapters):
        return status
    last = checkpoints[0].name if checkpoints else None
    return status.model_copy(update={"checkpoints": checkpoints, "adapters": adapters, "last_checkpoint": last})


def _since(status: RLRunStatus) -> datetime | None:
    found = find_condition(status, APPLIED)
    return found.last_transition_time if found is not None else None
