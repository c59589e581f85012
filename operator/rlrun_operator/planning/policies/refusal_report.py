"""Report of refused objects in the run's status: one condition for children, one for checkpoints and adapters.

Refused children keep a run from starting. A refused checkpoint or adapter holds up nothing but its own listing.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

from rlrun.api.run_status import Phase, RLRunStatus
from rlrun.constants import ConditionType, Reason
from rlrun.kube.conditions import find_condition, seconds
from rlrun.kube.refusals import ObjectRefused
from rlrun.protocol.problem import Problem

from rlrun_operator.planning.diagnosis.readiness import blocking_problem
from rlrun_operator.planning.plan.actions import ConditionChange, Plan, StatusChange
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.plan.status_builder import apply_change, is_true, reason_fields, transition_time
from rlrun_operator.planning.policies.run_endings import FINISH_SECONDS

ACTIVE = (Phase.pending, Phase.queued, Phase.running)
LONGEST_PAUSE = 30.0
"""Longest time in seconds between two attempts to write refused children. Deadlines are late by no more than this."""


def report_children(plan: Plan, refusal: ObjectRefused | None, now: datetime) -> Plan:
    """Return the plan with a status that reports the refused child, or that none is refused now."""
    if plan.status is None:
        return plan
    known = find_condition(plan.status, ConditionType.CHILDREN_APPLIED)
    replaced = {None if known is None else known.reason}
    if refusal is None:
        if not plan.writes_children:
            return plan
        status = _with_acceptance(plan.status, ConditionType.CHILDREN_APPLIED, now)
        return replace(plan, status=_with_reason(status, replaced, now))
    status = _with_refusal(plan.status, ConditionType.CHILDREN_APPLIED, refusal, now)
    plan = replace(plan, status=_with_reason(status, {None, Reason.STARTING, *replaced}, now))
    if status.phase is not Phase.pending:
        return plan
    refused_for = seconds(transition_time(status, ConditionType.CHILDREN_APPLIED), now)
    return replace(plan, requeue_after=min(LONGEST_PAUSE, max(1.0, refused_for)))


def report_artifacts(plan: Plan, refusals: Sequence[ObjectRefused], observation: RunObservation, now: datetime) -> Plan:
    """Return the plan with a status that reports refused checkpoints and adapters, or that none is refused now.

    The status does not list artifacts without an object: no other run could start from them.
    """
    if plan.status is None:
        return plan
    if not refusals:
        if not plan.records_artifacts:
            return plan
        return replace(plan, status=_with_acceptance(plan.status, ConditionType.ARTIFACTS_RECORDED, now))
    status = _with_refusal(plan.status, ConditionType.ARTIFACTS_RECORDED, refusals[0], now)
    missing = {(r.kind, r.name) for r in refusals if not observation.has_object(r.kind, r.name)}
    refused_for = seconds(transition_time(status, ConditionType.ARTIFACTS_RECORDED), now)
    return replace(
        plan,
        status=_without_artifacts(status, missing),
        # Garbage collection deletes files without an object.
        delete_run=plan.delete_run and refused_for >= FINISH_SECONDS,
        requeue_after=LONGEST_PAUSE if plan.requeue_after is None else plan.requeue_after,
    )


def _with_refusal(status: RLRunStatus, kind: ConditionType, refusal: ObjectRefused, now: datetime) -> RLRunStatus:
    problem, known = refusal.problem, find_condition(status, kind)
    if known is not None and known.reason == problem.reason and refusal.is_about(known.message):
        # The API server's message may have other numbers each time, and each write of the status causes a reconcile.
        problem = Problem(reason=known.reason, message=known.message)
    return apply_change(status, StatusChange((ConditionChange(kind, False, problem.reason, problem.message),)), now)


def _with_acceptance(status: RLRunStatus, kind: ConditionType, now: datetime) -> RLRunStatus:
    if find_condition(status, kind) is None or is_true(status, kind):
        return status
    return apply_change(status, StatusChange((ConditionChange(kind, True, Reason.APPLIED),)), now)


def _with_reason(status: RLRunStatus, replaced: Collection[str | None], now: datetime) -> RLRunStatus:
    """Return the status with the problem that blocks the run as its reason, if its reason is one to replace."""
    if status.phase not in ACTIVE or status.reason not in replaced:
        return status
    return apply_change(status, StatusChange(fields=reason_fields(blocking_problem(status))), now)


def _without_artifacts(status: RLRunStatus, missing: set[tuple[str, str]]) -> RLRunStatus:
    checkpoints = [c for c in status.checkpoints if ("RLCheckpoint", c.name) not in missing]
    adapters = [a for a in status.adapters if ("RLAdapter", a.name) not in missing]
    last = checkpoints[0].name if checkpoints else None
    return status.model_copy(update={"checkpoints": checkpoints, "adapters": adapters, "last_checkpoint": last})
