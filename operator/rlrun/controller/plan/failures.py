"""What follows from crashes: the run's failure policy, and the limit of maxRestarts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rlrun.controller.plan.restarts import Counted, Crash
from rlrun.controller.plan.troubles import Trouble
from rlrun.schema.failure import FailureAction, FailureRule
from rlrun.schema.patterns import occurs
from rlrun.schema.run import RLRunSpec
from rlrun.schema.wire import Problem

OF_THE_ROLE = (FailureAction.restart_role, FailureAction.restart_role_ignore_max)


@dataclass(frozen=True)
class Verdict:
    """End the run, or start a new attempt."""

    action: Literal["fail", "restart"]
    problem: Problem
    toward_max: bool = True
    """Whether the new attempt counts toward maxRestarts."""


def forgive(spec: RLRunSpec, counted: Counted) -> Counted:
    """The memory without the new crashes that the policy does not count toward maxRestarts."""
    forgiven = Counter(
        crash.component
        for crash in counted.crashes
        if (rule := rule_for(spec, crash)) and rule.action is FailureAction.restart_role_ignore_max
    )
    components = [c.model_copy(update={"crashes": c.crashes - forgiven[c.name]}) for c in counted.components]
    return replace(counted, components=components)


def judge(spec: RLRunSpec, run_restarts: int, counted: Counted, troubles: Sequence[Trouble]) -> Verdict | None:
    """None when Kubernetes' own restarts are all that is needed.

    `run_restarts` are those of the whole run until now that count toward maxRestarts. `counted.crashes` are new ones
    only, so no rule answers the same crash twice.
    """
    for crash in counted.crashes:
        rule = rule_for(spec, crash)
        if rule is None or rule.action in OF_THE_ROLE:
            continue
        if rule.action is FailureAction.fail:
            return Verdict("fail", crash.problem)
        if rule.action is FailureAction.restart_run_ignore_max:
            return Verdict("restart", crash.problem, toward_max=False)
        if run_restarts < spec.max_restarts:
            return Verdict("restart", crash.problem)
        when = f"after {run_restarts} restarts of the run (maxRestarts {spec.max_restarts})"
        return Verdict("fail", _exhausted(crash.problem, when))
    final = next((t for t in troubles if t.final), None)
    if final:
        return Verdict("fail", final.problem)
    for component in counted.components:
        if component.crashes > spec.max_restarts:
            problem = next((c.problem for c in counted.crashes if c.component == component.name), None)
            problem = problem or next((t.problem for t in troubles if t.component == component.name), None)
            problem = problem or Problem(reason="TooManyRestarts", message=f"{component.name} keeps crashing.")
            return Verdict(
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
