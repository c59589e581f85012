"""What follows from crashes: the run's failure policy, and the limit of maxRestarts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlrun.controller.plan.restarts import Counted, Crash
from rlrun.controller.plan.troubles import Trouble
from rlrun.schema.failure import FailureAction, FailureRule
from rlrun.schema.run import RLRunSpec
from rlrun.schema.wire import Problem


@dataclass(frozen=True)
class Verdict:
    """End the run, or start a new attempt."""

    action: Literal["fail", "restart"]
    problem: Problem


def judge(spec: RLRunSpec, attempt: int, counted: Counted, troubles: Sequence[Trouble]) -> Verdict | None:
    """None when Kubernetes' own restarts are all that is needed.

    `counted.crashes` are new ones only, so no rule answers the same crash twice.
    """
    for crash in counted.crashes:
        rule = next((r for r in spec.failure_policy.rules if matches(r, crash)), None)
        if rule is None or rule.action is FailureAction.restart_component:
            continue
        if rule.action is FailureAction.fail:
            return Verdict("fail", crash.problem)
        if rule.action is FailureAction.restart_run_ignore_max or attempt <= spec.max_restarts:
            return Verdict("restart", crash.problem)
        return Verdict("fail", _exhausted(crash.problem, f"after {attempt} attempts (maxRestarts {spec.max_restarts})"))
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


def matches(rule: FailureRule, crash: Crash) -> bool:
    """Whether the rule is about this crash; what a rule leaves out matches everything."""
    return (
        (not rule.components or crash.role in [c.value for c in rule.components])
        and (not rule.exit_codes or crash.exit_code in rule.exit_codes)
        and (not rule.reasons or crash.reason in rule.reasons or crash.problem.reason in rule.reasons)
    )


def _exhausted(problem: Problem, when: str) -> Problem:
    return Problem(reason=problem.reason, message=f"Given up {when}. {problem.message}")
