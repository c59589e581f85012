"""Progress and phase of a run with an active attempt."""

from datetime import datetime

from rlrun.api.base.phases import Phase
from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import RLRunStatus
from rlrun.constants import Reason

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.diagnosis.readiness import blocking_problem
from rlrun_operator.planning.diagnosis.run_progress import has_started, progress_change, warning_conditions
from rlrun_operator.planning.plan.actions import ConditionChange, PlanPart, StatusChange
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.plan.status_builder import is_true, reason_fields
from rlrun_operator.planning.policies.ending.run_endings import NOT_FINISHED
from rlrun_operator.planning.policies.running.quiet_runs import seconds_to_next_reconcile


def report_progress(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart:
    """Report the orchestrator's progress and warnings, and the start of the first step."""
    report, change = observation.poll, StatusChange()
    if report is not None:
        change = StatusChange(warning_conditions(status, report), progress_change(status, report, now))
    if report is not None and has_started(report):
        change = change.then(StatusChange((ConditionChange("Running", True, Reason.RUNNING),)))
    elif not is_true(status, "Running"):
        change = change.then(StatusChange((ConditionChange("Running", False, Reason.STARTING),)))
    return PlanPart(status=change)


def report_phase(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart:
    """Report the phase of the run and its reason."""
    blocking = blocking_problem(status)
    phase = Phase.running if is_true(status, "Running") else Phase.pending
    change = StatusChange(NOT_FINISHED, {"phase": phase, **reason_fields(blocking)})
    again = seconds_to_next_reconcile(observation, status, spec, settings, now)
    return PlanPart(status=change, requeue_after=again, final=True)
