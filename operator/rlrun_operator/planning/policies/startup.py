"""From the begin of an attempt to its pods being ready."""

from datetime import datetime

from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import Phase, RLRunStatus
from rlrun.constants import ConditionType, Reason
from rlrun.kube.conditions import seconds
from rlrun.protocol.problem import Problem

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.diagnosis.pod_diagnostics import pod_troubles
from rlrun_operator.planning.diagnosis.quota_queue import queued_workloads
from rlrun_operator.planning.diagnosis.readiness import expected_pods, readiness_conditions
from rlrun_operator.planning.plan.actions import ConditionChange, PlanPart, StatusChange
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.plan.status_builder import apply_change, reason_fields
from rlrun_operator.planning.policies.attempts import attempt_start
from rlrun_operator.planning.policies.children import missing_children, refreshes, stale_children
from rlrun_operator.planning.policies.deadlines import plan_waiting
from rlrun_operator.planning.policies.resolution import resolve_run
from rlrun_operator.planning.policies.run_endings import mark_finished
from rlrun_operator.resources.children import children

DEFAULT_START_DEADLINE = 3600


def plan_invalid_spec(
    observation: RunObservation, status: RLRunStatus, problem: Problem, settings: OperatorSettings, now: datetime
) -> PlanPart:
    """Wait until the spec is corrected. A run that runs or has finished was valid before, and stays as it is."""
    invalid = StatusChange((ConditionChange(ConditionType.VALIDATED, False, problem.reason, problem.message),))
    if status.phase is not None and (status.phase.finished or status.phase is Phase.running):
        return PlanPart(status=invalid, final=True)
    if status.attempt_start_time is None:
        invalid = invalid.then(attempt_start(status, now))
    status = apply_change(status, invalid, now)
    limit = observation.run.get("spec", {}).get("startDeadlineSeconds")
    limit = limit if isinstance(limit, int) and limit > 0 else DEFAULT_START_DEADLINE
    waited = seconds(status.attempt_start_time, now)
    if waited >= limit:
        failed = mark_finished(observation, status, settings, now, Phase.failed, problem)
        return PlanPart(status=invalid).then(failed)
    waiting = StatusChange(fields={"phase": Phase.pending, **reason_fields(problem)})
    return PlanPart(status=invalid.then(waiting), requeue_after=limit - waited, final=True)


def wait_for_previous_pods(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Delete what earlier attempts left behind, and wait until their pods are gone."""
    refs, wait = stale_children(observation, status.attempt)
    if not wait:
        return None
    problem = Problem(
        reason=Reason.WAITING_FOR_PREVIOUS_PODS,
        message="pods of an earlier attempt, or of an earlier run, are still ending",
    )
    return PlanPart(deletes=tuple(refs)).then(plan_waiting(observation, status, spec, settings, now, problem))


def validate_references(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Wait until everything exists that the spec refers to."""
    resolved = resolve_run(observation, status, spec, settings)
    if not isinstance(resolved, Problem):
        return PlanPart(status=StatusChange((ConditionChange(ConditionType.VALIDATED, True, Reason.VALID),)))
    invalid = StatusChange((ConditionChange(ConditionType.VALIDATED, False, resolved.reason, resolved.message),))
    return PlanPart(status=invalid).then(plan_waiting(observation, status, spec, settings, now, resolved))


def create_children(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Create what is missing of the attempt's objects."""
    resolved = resolve_run(observation, status, spec, settings)
    if isinstance(resolved, Problem):
        return None
    desired = children(observation.identity(status.attempt), settings, resolved, observation.s3_variables)
    if not observation.s3_variables:
        # The platform's Secret is gone for now: pods that run keep the credentials that they have.
        desired = [c for c in desired if c["kind"] != "Secret"]
    applies = missing_children(desired, observation)
    return PlanPart(applies=tuple(applies), refreshes=tuple(refreshes(applies, observation)))


def report_readiness(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Report for every role if its pods are ready, and what they wait for."""
    resolved = resolve_run(observation, status, spec, settings)
    if isinstance(resolved, Problem):
        return None
    pods = observation.pods_of(status.attempt)
    waiting_for = observation.poll.waiting_for if observation.poll else None
    queued = queued_workloads(observation, status.attempt)
    wanted = expected_pods(spec, resolved.model)
    return PlanPart(status=StatusChange(readiness_conditions(wanted, pods, pod_troubles(pods), waiting_for, queued)))
