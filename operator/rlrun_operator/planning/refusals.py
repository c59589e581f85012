"""Reports refused objects in the run's status: one condition for children, one for checkpoints and adapters.

Refused children prevent a run from starting. A refused checkpoint or adapter only delays retention and the deletion of
the run.
"""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from rlrun.api.base.phases import Phase
from rlrun.api.run_status import MAX_LISTED, ArtifactEntry, RLRunStatus
from rlrun.constants import ConditionType, Reason
from rlrun.kube.conditions import find_condition, seconds
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.kube.refusals import REFUSED_DELETION, ObjectRefused
from rlrun.protocol.problem import Problem

from rlrun_operator.planning.actions import ConditionChange, Plan, PlanPart, StatusChange
from rlrun_operator.planning.observation import RunObservation
from rlrun_operator.planning.readiness import STARTING_REASONS, blocking_problem
from rlrun_operator.planning.status import apply_change, is_true, reason_fields, transition_time

ACTIVE = (Phase.pending, Phase.queued, Phase.running)
UNREAD = (Reason.OBJECTS_TOO_LARGE, Reason.NAMESPACE_NOT_TENANT)
"""Reasons why only the run itself was read."""
LONGEST_PAUSE_SECONDS = 30.0
"""Maximum seconds between two attempts to write a refused object. Deadlines may be enforced this much later."""


def report_children(plan: Plan, refusal: ObjectRefused | None, now: datetime) -> Plan:
    """Return the plan with a status that reports a refused child or deletion, or that nothing is refused."""
    if plan.status is None:
        return plan
    known = find_condition(plan.status, ConditionType.CHILDREN_APPLIED)
    replaced = {None if known is None else known.reason}
    if refusal is None:
        was_deletion = known is not None and known.message.startswith(REFUSED_DELETION)
        if not plan.writes_children and not was_deletion:
            return plan
        status = _with_acceptance(plan.status, ConditionType.CHILDREN_APPLIED, now)
        return replace(plan, status=_with_reason(status, replaced, now))
    status = _with_refusal(plan.status, ConditionType.CHILDREN_APPLIED, refusal, now)
    plan = replace(plan, status=_with_reason(status, {None, *STARTING_REASONS, *replaced}, now))
    refused_for = seconds(transition_time(status, ConditionType.CHILDREN_APPLIED), now)
    pause = min(LONGEST_PAUSE_SECONDS, max(1.0, refused_for))
    # After a refused deletion, no event of a pod causes the next reconcile.
    is_deletion = refusal.problem.message.startswith(REFUSED_DELETION)
    if status.phase is Phase.pending or is_deletion or plan.requeue_after is None:
        return replace(plan, requeue_after=pause)
    return replace(plan, requeue_after=min(pause, plan.requeue_after))


def report_unread(run: Obj, error: ApiError, now: datetime) -> RLRunStatus:
    """Return the status of a run whose objects are too large to read."""
    status = RLRunStatus.parse(run.get("status"))
    known = find_condition(status, ConditionType.CHILDREN_APPLIED)
    if known is not None and known.reason == Reason.OBJECTS_TOO_LARGE:
        # Several lists are read concurrently, and the first to fail varies. Avoid a write, which would cause a
        # reconcile.
        return status
    replaced = {None, *STARTING_REASONS, None if known is None else known.reason}
    if status.phase is None:
        status = status.model_copy(update={"phase": Phase.pending})
    problem = ConditionChange(ConditionType.CHILDREN_APPLIED, False, Reason.OBJECTS_TOO_LARGE, str(error))
    return _with_reason(apply_change(status, StatusChange((problem,)), now), replaced, now)


def report_no_tenant(observation: RunObservation, problem: Problem, now: datetime) -> Plan:
    """Return the plan for a run in a namespace that is not a tenant. The plan only reports the problem, and leaves a
    finished run unchanged.
    """
    status = observation.status
    if status.phase is not None and status.phase.finished:
        return Plan(status=status)
    status = observation.new_status()
    fields = reason_fields(problem) if status.phase in (None, *ACTIVE) else {}
    if status.phase is None:
        fields = {**fields, "phase": Phase.pending}
    change = ConditionChange(ConditionType.CHILDREN_APPLIED, False, problem.reason, problem.message)
    return Plan(status=apply_change(status, StatusChange((change,), fields), now))


def report_read(status: RLRunStatus) -> PlanPart:
    """Report that the run's objects can be read again, if they could not before."""
    known = find_condition(status, ConditionType.CHILDREN_APPLIED)
    if known is None or known.reason not in UNREAD:
        return PlanPart()
    # The following policies set the current reason.
    fields = reason_fields(None) if status.reason in UNREAD else {}
    accepted = ConditionChange(ConditionType.CHILDREN_APPLIED, True, Reason.APPLIED)
    return PlanPart(status=StatusChange((accepted,), fields))


def report_artifacts(plan: Plan, error: ApiError | None, observation: RunObservation, now: datetime) -> Plan:
    """Return the plan with a status that reports a refused checkpoint or adapter, or that nothing is refused.

    The status lists at most MAX_LISTED artifacts of each kind. After an error it lists only artifacts that have an
    object, because a run cannot start from an artifact without an object.
    """
    if plan.status is None:
        return plan if error is None else replace(plan, requeue_after=LONGEST_PAUSE_SECONDS)
    status = plan.status
    if isinstance(error, ObjectRefused):
        status = _with_refusal(status, ConditionType.ARTIFACTS_RECORDED, error, now)
    elif error is None and plan.records_artifacts:
        status = _with_acceptance(status, ConditionType.ARTIFACTS_RECORDED, now)
    if plan.records_artifacts:
        status = _with_listed_artifacts(status, observation, only_recorded=error is not None)
    plan = replace(plan, status=status)
    if error is None:
        return plan
    pauses = (LONGEST_PAUSE_SECONDS, plan.requeue_after)
    return replace(plan, requeue_after=min(pause for pause in pauses if pause is not None))


def _with_refusal(status: RLRunStatus, kind: ConditionType, refusal: ObjectRefused, now: datetime) -> RLRunStatus:
    problem, known = refusal.problem, find_condition(status, kind)
    if known is not None and known.reason == problem.reason and refusal.is_about(known.message):
        # Numbers in the API server's message may vary, and each write of the status causes a reconcile.
        problem = Problem(reason=known.reason, message=known.message)
    return apply_change(status, StatusChange((ConditionChange(kind, False, problem.reason, problem.message),)), now)


def _with_acceptance(status: RLRunStatus, kind: ConditionType, now: datetime) -> RLRunStatus:
    if find_condition(status, kind) is None or is_true(status, kind):
        return status
    return apply_change(status, StatusChange((ConditionChange(kind, True, Reason.APPLIED),)), now)


def _with_reason(status: RLRunStatus, replaced: Collection[str | None], now: datetime) -> RLRunStatus:
    """Set the run's reason to the problem that blocks the run, if the current reason is in `replaced`."""
    if status.phase not in ACTIVE or status.reason not in replaced:
        return status
    return apply_change(status, StatusChange(fields=reason_fields(blocking_problem(status))), now)


def _with_listed_artifacts(status: RLRunStatus, observation: RunObservation, *, only_recorded: bool) -> RLRunStatus:
    def select_listed(kind: str, artifacts: list[ArtifactEntry]) -> list[ArtifactEntry]:
        recorded = [a for a in artifacts if not only_recorded or observation.has_object(kind, a.name)]
        return recorded[:MAX_LISTED]

    checkpoints = select_listed("RLCheckpoint", status.checkpoints)
    last = checkpoints[0].name if checkpoints else None
    adapters = select_listed("RLAdapter", status.adapters)
    return status.model_copy(update={"checkpoints": checkpoints, "adapters": adapters, "last_checkpoint": last})
