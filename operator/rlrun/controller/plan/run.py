"""The plan of one reconcile. Pure: the same observation at the same time gives the same plan."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from rlrun.controller.plan.actions import Plan, PlanPart
from rlrun.controller.plan.artifacts import list_artifacts
from rlrun.controller.plan.attempts import begin_attempt, plan_restart_wait
from rlrun.controller.plan.deadlines import enforce_deadlines
from rlrun.controller.plan.deletion import plan_deletion
from rlrun.controller.plan.draft import to_clock
from rlrun.controller.plan.ending import plan_finished, plan_outcome, plan_stopped, plan_suspended
from rlrun.controller.plan.failures import apply_failure_policy
from rlrun.controller.plan.logs import copy_ended_logs
from rlrun.controller.plan.observation import RunObservation
from rlrun.controller.plan.phase import report_phase, report_progress
from rlrun.controller.plan.startup import (
    create_children,
    plan_invalid_spec,
    report_readiness,
    validate_references,
    wait_for_previous_pods,
)
from rlrun.controller.plan.story import PlanBuilder
from rlrun.controller.plan.validation import parse_spec
from rlrun.resources.settings import Settings
from rlrun.schema.run import RLRunSpec
from rlrun.schema.run_status import RLRunStatus
from rlrun.schema.wire import Problem


class Policy(Protocol):
    """One decision about a run that has a valid spec and is not being deleted. None: the policy adds nothing."""

    def __call__(
        self, observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: Settings, now: datetime, /
    ) -> PlanPart | None:
        """Return the policy's part of the plan; `status` has the changes of the policies before it."""


POLICIES: tuple[Policy, ...] = (
    # The listed artifacts follow S3 in every phase.
    list_artifacts,
    # A run without work: finished, stopped or suspended.
    plan_finished,
    plan_stopped,
    plan_suspended,
    # An attempt begins: the first one, or another one after a pause.
    plan_restart_wait,
    begin_attempt,
    wait_for_previous_pods,
    # The references of the spec are resolved once and then frozen in the attempt's ConfigMap.
    validate_references,
    # The orchestrator's final status ends the run, before anything is created again.
    plan_outcome,
    create_children,
    report_readiness,
    apply_failure_policy,
    report_progress,
    enforce_deadlines,
    report_phase,
)
"""All policies in the order in which they are asked; the first final part ends the list."""


def plan_run(
    observation: RunObservation, settings: Settings, now: datetime, policies: Sequence[Policy] = POLICIES
) -> Plan:
    """Return what to do about a run."""
    if observation.run["metadata"].get("deletionTimestamp"):
        return plan_deletion(observation, settings, now)
    now = to_clock(now)
    builder = PlanBuilder(observation, now)
    builder.merge(copy_ended_logs(observation, settings))
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
