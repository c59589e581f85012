"""What follows from crashes: the run's failure policy, and the limit of maxRestarts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from rlrun.api.base.patterns import occurs
from rlrun.api.run import RLRunSpec
from rlrun.api.run_sections.failure_policy import FailureAction, FailureRule
from rlrun.api.run_status import Phase, RLRunStatus
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.diagnosis.crash_counter import Crash, CrashCount, count_restarts
from rlrun_operator.planning.diagnosis.pod_diagnostics import PodProblem, pod_troubles
from rlrun_operator.planning.diagnosis.startup_failures import record_startup_failures
from rlrun_operator.planning.plan.actions import PlanPart, StatusChange
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.plan.status_builder import apply_change
from rlrun_operator.planning.policies.attempts import plan_restart
from rlrun_operator.planning.policies.log_copies import crash_logs
from rlrun_operator.planning.policies.run_endings import mark_finished
from rlrun_operator.resources.platform import run_layout

OF_THE_ROLE = (FailureAction.restart_role, FailureAction.restart_role_ignore_max)


@dataclass(frozen=True)
class FailureDecision:
    """End the run, or start a new attempt."""

    action: Literal["fail", "restart"]
    problem: Problem
    counts_toward_max: bool = True
    """Whether the new attempt counts toward maxRestarts."""


def apply_failure_policy(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart:
    """Count restarts and crashes, and end the run or the attempt where the failure policy says so."""
    pods = observation.pods_of(status.attempt)
    counted = discount_ignored_crashes(spec, count_restarts(status.components, pods))
    change = StatusChange(
        fields={
            "components": record_startup_failures(counted.components, pods, now),
            "restarts": status.restarts + counted.restarts,
        }
    )
    layout = run_layout(settings, observation.namespace, observation.uid)
    part = PlanPart(status=change, logs=tuple(crash_logs(layout, status.attempt, counted.crashes)))
    verdict = decide(spec, status.run_restarts_toward_max, counted, pod_troubles(pods))
    if verdict is None:
        return part
    status = apply_change(status, change, now)
    if verdict.action == "fail":
        failed = mark_finished(observation, status, settings, now, Phase.failed, verdict.problem)
        return part.then(replace(failed, discard_writes=True))
    return part.then(
        plan_restart(observation, status, settings, now, verdict.problem, toward_max=verdict.counts_toward_max)
    )


def discount_ignored_crashes(spec: RLRunSpec, counted: CrashCount) -> CrashCount:
    """The memory without the new crashes that the policy does not count toward maxRestarts."""
    forgiven = Counter(
        crash.component
        for crash in counted.crashes
        if (rule := rule_for(spec, crash)) and rule.action is FailureAction.restart_role_ignore_max
    )
    components = [c.model_copy(update={"crashes": c.crashes - forgiven[c.name]}) for c in counted.components]
    return replace(counted, components=components)


def decide(
    spec: RLRunSpec, run_restarts: int, counted: CrashCount, troubles: Sequence[PodProblem]
) -> FailureDecision | None:
    """None when Kubernetes' own restarts are all that is needed.

    `run_restarts` are those of the whole run until now that count toward maxRestarts. `counted.crashes` are new ones
    only, so no rule answers the same crash twice.
    """
    for crash in counted.crashes:
        rule = rule_for(spec, crash)
        if rule is None or rule.action in OF_THE_ROLE:
            continue
        if rule.action is FailureAction.fail:
            return FailureDecision("fail", crash.problem)
        if rule.action is FailureAction.restart_run_ignore_max:
            return FailureDecision("restart", crash.problem, counts_toward_max=False)
        if run_restarts < spec.max_restarts:
            return FailureDecision("restart", crash.problem)
        when = f"after {run_restarts} restarts of the run (maxRestarts {spec.max_restarts})"
        return FailureDecision("fail", _exhausted(crash.problem, when))
    final = next((t for t in troubles if t.final), None)
    if final:
        return FailureDecision("fail", final.problem)
    for component in counted.components:
        if component.crashes > spec.max_restarts:
            problem = next((c.problem for c in counted.crashes if c.component == component.name), None)
            problem = problem or next((t.problem for t in troubles if t.component == component.name), None)
            problem = problem or Problem(reason=Reason.TOO_MANY_RESTARTS, message=f"{component.name} keeps crashing.")
            return FailureDecision(
                "fail", _exhausted(problem, f"after {component.crashes} crashes (maxRestarts {spec.max_restarts})")
            )
    return None


def rule_for(spec: RLRunSpec, crash: Crash) -> FailureRule | None:
    """The first rule that is about this crash."""
    return next((r for r in spec.failure_policy.rules if matches(r, crash)), None)


def matches(rule: FailureRule, crash: Crash) -> bool:
    """Whether the rule is about this crash; what a rule leaves out matches everything."""
    return (
        (not rule.roles or crash.role in [r.value for r in rule.roles])
        and (not rule.exit_codes or crash.exit_code in rule.exit_codes)
        and (not rule.reasons or crash.reason in rule.reasons or crash.problem.reason in rule.reasons)
        and (
            rule.message_pattern is None
            or occurs(rule.message_pattern, crash.message)
            or occurs(rule.message_pattern, crash.problem.message)
        )
    )


def _exhausted(problem: Problem, when: str) -> Problem:
    return Problem(reason=problem.reason, message=f"Given up {when}. {problem.message}")
