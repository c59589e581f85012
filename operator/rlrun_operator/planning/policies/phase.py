"""The progress and the phase of a run whose attempt is under way."""

from datetime import datetime

from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import Phase, RLRunStatus
from rlrun.constants import Reason

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.diagnosis.quota_queue import WAITING_FOR_QUOTA
from rlrun_operator.planning.diagnosis.readiness import blocking_problem
from rlrun_operator.planning.diagnosis.run_progress import has_started, progress_change, warning_conditions
from rlrun_operator.planning.plan.actions import ConditionChange, PlanPart, StatusChange
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.plan.status_builder import is_true, reason_fields
from rlrun_operator.planning.policies.run_endings import NOT_FINISHED


def report_progress(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Report what the orchestrator answered: progress, warnings, and if the attempt has begun its first step."""
    told, change = observation.poll, StatusChange()
    if told is not None:
        change = StatusChange(warning_conditions(status, told), progress_change(status, told))
    if told is not None and has_started(told):
        change = change.then(StatusChange((ConditionChange("Running", True, Reason.RUNNING),)))
    elif not is_true(status, "Running"):
        change = change.then(StatusChange((ConditionChange("Running", False, Reason.STARTING),)))
    return PlanPart(status=change)


def report_phase(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart:
    """Report in one word how the run stands, and why."""
    blocking = blocking_problem(status)
    if is_true(status, "Running"):
        phase = Phase.running
    elif blocking is not None and blocking.reason == WAITING_FOR_QUOTA:
        phase = Phase.queued
    else:
        phase = Phase.pending
    change = StatusChange(NOT_FINISHED, {"phase": phase, **reason_fields(blocking)})
    return PlanPart(status=change, requeue_after=settings.poll_seconds, final=True)
