"""The progress and the phase of a run whose attempt is under way."""

from datetime import datetime

from rlrun.controller.plan.actions import ConditionChange, PlanPart, StatusChange
from rlrun.controller.plan.draft import is_true, reason_fields
from rlrun.controller.plan.ending import NOT_FINISHED
from rlrun.controller.plan.observation import RunObservation
from rlrun.controller.plan.progress import has_begun, progress_change, warning_conditions
from rlrun.controller.plan.quota import WAITING_FOR_QUOTA
from rlrun.controller.plan.readiness import blocking_problem
from rlrun.resources.settings import Settings
from rlrun.schema.run import RLRunSpec
from rlrun.schema.run_status import Phase, RLRunStatus


def report_progress(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: Settings, now: datetime
) -> PlanPart | None:
    """Report what the orchestrator answered: progress, warnings, and if the attempt has begun its first step."""
    told, change = observation.poll, StatusChange()
    if told is not None:
        change = StatusChange(warning_conditions(status, told), progress_change(status, told))
    if told is not None and has_begun(told):
        change = change.then(StatusChange((ConditionChange("Running", True, "Running"),)))
    elif not is_true(status, "Running"):
        change = change.then(StatusChange((ConditionChange("Running", False, "Starting"),)))
    return PlanPart(status=change)


def report_phase(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: Settings, now: datetime
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
