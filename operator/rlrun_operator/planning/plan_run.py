"""Plans reconciles, and status updates after steps that change only the progress of a run.

The plan depends only on the observation, the settings and the time.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from datetime import datetime

from rlrun.api.base.phases import Phase
from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import RLRunStatus
from rlrun.constants import FINALIZER
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.protocol.problem import Problem

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.actions import Actions, ArtifactPlan, Plan, PlanPart, StatusChange
from rlrun_operator.planning.artifacts import UploadSchedule, list_artifacts
from rlrun_operator.planning.beginning import (
    create_children,
    end_attempt_without_slot,
    plan_invalid_spec,
    record_environments,
    report_admission,
    report_readiness,
    validate_references,
    wait_for_previous_pods,
    wait_for_slot,
    wait_for_weights,
    wait_with_refused_slot,
)
from rlrun_operator.planning.client_sessions import follow_session
from rlrun_operator.planning.deletion import plan_deletion
from rlrun_operator.planning.ending import plan_finished, plan_outcome, plan_stopped, plan_suspended
from rlrun_operator.planning.kueue_admission import update_workload
from rlrun_operator.planning.observation import Admitted, RunObservation
from rlrun_operator.planning.pools import join_pool, leave_replaced_pool, wait_for_pool
from rlrun_operator.planning.readiness import progress_change, warning_conditions
from rlrun_operator.planning.refusals import report_no_tenant, report_read
from rlrun_operator.planning.restarts import (
    apply_failure_policy,
    delete_lost_pods,
    delete_outlived_pods,
    end_refused_attempt,
    replace_orchestrator,
)
from rlrun_operator.planning.running import (
    begin_attempt,
    enforce_deadlines,
    plan_restart_wait,
    report_phase,
    report_progress,
    restart_with_unreadable_configuration,
)
from rlrun_operator.planning.spec import parse_spec
from rlrun_operator.planning.status import apply_change, read_status, to_clock


class PlanBuilder:
    """Builds a plan: merges its parts, and applies their changes to the run's status."""

    def __init__(self, observation: RunObservation, now: datetime) -> None:
        self._observation = observation
        self._now = now
        self._part = PlanPart()
        self.status: RLRunStatus = observation.new_status()

    def merge(self, part: PlanPart) -> None:
        """Add a part and apply its changes to `status`."""
        self.status = apply_change(self.status, part.status, self._now)
        self._part = self._part.then(part)

    def build(self, spec: RLRunSpec | None) -> Plan:
        """Return the plan. If `spec` is None, no finalizer is added."""
        observation, part = self._observation, self._part
        finalizers = observation.run["metadata"].get("finalizers") or []
        artifacts = part.artifacts or ArtifactPlan()
        actions = {action.name: getattr(part, action.name) for action in fields(Actions)}
        actions["logs"] = tuple({copy.uri: copy for copy in part.logs}.values())
        actions["deletes"] = tuple(dict.fromkeys((*artifacts.deletes, *part.deletes)))
        return Plan(
            **actions,
            add_finalizer=spec is not None and FINALIZER not in finalizers,
            records_artifacts=part.artifacts is not None,
            artifact_applies=tuple(artifacts.applies),
            artifact_statuses=tuple(artifacts.statuses),
            status=self.status,
            removals=tuple(artifacts.removals),
        )


Policy = Callable[[RunObservation, RLRunStatus, RLRunSpec, OperatorSettings, datetime], PlanPart | None]
"""Decision about a run that has a valid spec and is not being deleted. `status` includes the changes of earlier
policies.
"""

POLICIES: tuple[Policy, ...] = (
    # The list of artifacts follows S3 in every phase.
    list_artifacts,
    # Inactive runs: finished, stopped or suspended.
    plan_finished,
    plan_stopped,
    plan_suspended,
    # A run without a slot starts no attempt.
    wait_for_slot,
    # Pods on lost nodes would delay the next orchestrator and the next attempt indefinitely.
    delete_lost_pods,
    # Start of an attempt: the first one, or a restart after a pause.
    plan_restart_wait,
    begin_attempt,
    wait_for_previous_pods,
    # The orchestrator's final status ends the run, before anything is created again.
    plan_outcome,
    end_attempt_without_slot,
    # The references of the spec are resolved once and then frozen in the attempt's ConfigMap.
    restart_with_unreadable_configuration,
    leave_replaced_pool,
    record_environments,
    validate_references,
    wait_with_refused_slot,
    wait_for_weights,
    join_pool,
    wait_for_pool,
    delete_outlived_pods,
    replace_orchestrator,
    create_children,
    report_readiness,
    apply_failure_policy,
    report_progress,
    follow_session,
    end_refused_attempt,
    enforce_deadlines,
    report_phase,
)
"""Policies in the order of their calls. The first final part completes the plan."""


def plan_run(
    observation: RunObservation, settings: OperatorSettings, now: datetime, policies: Sequence[Policy] = POLICIES
) -> Plan:
    """Return the plan for a run."""
    if observation.run["metadata"].get("deletionTimestamp"):
        return _release_slot(observation, plan_deletion(observation, settings, now), now)
    now = to_clock(now)
    if observation.tenancy_problem is not None:
        return report_no_tenant(observation, observation.tenancy_problem, now)
    builder = PlanBuilder(observation, now)
    builder.merge(report_read(builder.status))
    builder.merge(report_admission(observation, builder.status))
    builder.merge(update_workload(observation, builder.status, settings, now))
    spec = parse_spec(observation.run)
    if isinstance(spec, Problem):
        builder.merge(plan_invalid_spec(observation, builder.status, spec, settings, now))
        return builder.build(None)
    for policy in policies:
        part = policy(observation, builder.status, spec, settings, now)
        if part is None:
            continue
        builder.merge(part)
        if part.final:
            break
    return builder.build(spec)


def _release_slot(observation: RunObservation, plan: Plan, now: datetime) -> Plan:
    """Remove a slot that the queue has released from the status of a run that is being deleted, so that the run leaves
    its shared pool.
    """
    status = plan.status or observation.status
    is_held = observation.tenancy_problem is not None or isinstance(observation.admission, Admitted)
    if is_held or status.queue is None or status.queue.admitted_time is None:
        return plan
    return replace(plan, status=apply_change(status, report_admission(observation, status).status, now))


def plan_progress(run: Obj, report: RunStatus, now: datetime) -> RLRunStatus | None:
    """Return the run's status with the progress in the report, or None if a reconcile is needed.

    A reconcile is needed if a checkpoint or an adapter is due after the step, if the report changes a condition, if the
    run does not train, or if its spec has changed.
    """
    metadata, spec = run["metadata"], parse_spec(run)
    try:
        status = read_status(run)
    except ApiError:
        return None
    if isinstance(spec, Problem) or status.progress is None or status.resolved is None:
        return None
    trains = status.phase is Phase.running and report.phase is RunPhase.running
    if not trains or metadata.get("deletionTimestamp") or metadata.get("generation") != status.observed_generation:
        return None
    shown = status.progress.step
    interval = spec.checkpoints.interval or status.resolved.checkpoint_interval or 1
    schedule = UploadSchedule(interval, spec.adapters.interval, spec.max_steps)
    has_other_end = report.max_steps != status.progress.max_steps
    if report.step < shown or has_other_end or schedule.is_passed(shown, report.step):
        return None
    after = apply_change(status, StatusChange(warning_conditions(status, report)), now)
    return status.model_copy(update=progress_change(status, report, now)) if after == status else None
