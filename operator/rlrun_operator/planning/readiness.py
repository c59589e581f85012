"""Readiness conditions, progress and warnings in a run's status."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from rlrun.api.base.kubernetes_types import Condition
from rlrun.api.run_status import Groups, Progress, RLRunStatus
from rlrun.constants import START_CONDITIONS, ConditionType, Driver, Hint, Reason, TrainingIssue
from rlrun.kube.conditions import find_condition
from rlrun.kube.pods import Pod
from rlrun.protocol.orchestrator import GroupCounts, RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import ResolvedRun

from rlrun_operator.planning.actions import ConditionChange, StatusFields
from rlrun_operator.planning.pod_problems import PodProblem
from rlrun_operator.planning.status import is_true
from rlrun_operator.resources.environment import environment_entries

CONDITION_OF = {
    "trainer": ConditionType.TRAINER_READY,
    "inference": ConditionType.INFERENCE_READY,
    "environment": ConditionType.ENVIRONMENTS_READY,
    "orchestrator": ConditionType.ORCHESTRATOR_READY,
}


STARTING_REASONS = frozenset({Reason.STARTING, Reason.POOL_STARTING})
"""Reasons of roles whose pods only need time to become ready."""
NO_PODS = "A client's program trains the run, so the run has no pods of this role."
SILENT_SECONDS = 30.0
"""Seconds without a status after which an orchestrator with a ready pod is reported as unreachable."""


def unreachable_problem(error: Problem | None, silent_seconds: float, shown: Condition | None) -> Problem | None:
    """Return the problem to report if the orchestrator does not respond to the operator, or None.

    `error` is the error of the last request. `shown` is the current condition: if it already reports the orchestrator
    as unreachable, the report is kept until the next response, because a restarted operator does not know when the
    outage began.
    """
    if error is None:
        return None
    if shown is not None and shown.reason == Reason.ORCHESTRATOR_UNREACHABLE:
        return Problem(reason=shown.reason, message=shown.message)
    if silent_seconds < SILENT_SECONDS:
        return None
    return Problem(
        reason=Reason.ORCHESTRATOR_UNREACHABLE,
        message=f"The operator has received no status from the orchestrator for {SILENT_SECONDS:.0f} s "
        f"({error.reason}). While this lasts, the run shows no progress, and `spec.startDeadlineSeconds` or "
        "`spec.stallDeadlineSeconds` may end it. Check the orchestrator's log and node, and that NetworkPolicies allow "
        "the operator to reach it.",
    )


def last_reported_wait(status: RLRunStatus) -> Problem | None:
    """Return what the orchestrator was waiting for in its last report, according to the conditions, or None."""
    for kind in CONDITION_OF.values():
        condition = find_condition(status, kind)
        if condition is not None and is_wait(condition.reason):
            return Problem(reason=condition.reason, message=condition.message)
    return None


def has_ready_pods(status: RLRunStatus, kind: ConditionType) -> bool:
    """Return whether all pods of the condition's role are ready, even if the orchestrator does not respond."""
    condition = find_condition(status, kind)
    return is_true(status, kind) or (condition is not None and _is_silence(kind, condition.reason))


def _is_silence(kind: ConditionType, reason: str | None) -> bool:
    # Environments that cannot reach the orchestrator have the same reason.
    return kind is ConditionType.ORCHESTRATOR_READY and reason == Reason.ORCHESTRATOR_UNREACHABLE


def expected_pods(resolved: ResolvedRun) -> dict[str, dict[str, int]]:
    """Return the expected number of pods by role and component, including the pods of a shared pool."""
    model = resolved.model
    engines = model.inference.replicas if resolved.endpoints.pool is None else model.sharing.engines
    return {
        "trainer": {"trainer": model.trainer.nodes},
        "inference": {"inference": engines},
        "environment": {item.component: item.entry.replicas for item in environment_entries(resolved.spec)},
        "orchestrator": {} if resolved.spec.driver is Driver.client else {"orchestrator": 1},
    }


def blamed_role(problem: Problem) -> str:
    """Return the role named in the problem's reason, such as `EnvironmentLoadFailed`, or else `orchestrator`."""
    for role, text in (("environment", "Environment"), ("trainer", "Trainer"), ("inference", "Inference")):
        if text in problem.reason:
            return role
    return "orchestrator"


def readiness_conditions(
    wanted: Mapping[str, Mapping[str, int]],
    pods: Sequence[Pod],
    problems: Sequence[PodProblem],
    waiting_for: Problem | None,
    unreachable: Problem | None = None,
) -> tuple[ConditionChange, ...]:
    """Return the conditions of the four roles.

    The problem of a pod takes precedence, because it is closer to the cause than what other processes wait for.
    `unreachable` is the problem of an orchestrator that does not respond.
    """

    def condition(role: str, components: Mapping[str, int]) -> ConditionChange:
        kind = CONDITION_OF[role]
        pod_problem = next((p.problem for p in problems if p.role == role), None)
        if pod_problem:
            return ConditionChange(kind, False, pod_problem.reason, pod_problem.message)
        if waiting_for and blamed_role(waiting_for) == role:
            return ConditionChange(kind, False, waiting_for.reason, waiting_for.message)
        missing = {
            name: count - ready
            for name, count in components.items()
            if (ready := sum(p.is_ready for p in pods if p.component == name)) < count
        }
        if missing:
            names = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in sorted(missing.items()))
            return ConditionChange(kind, False, Reason.STARTING, f"Waiting for pods to become ready: {names}")
        if unreachable and role == "orchestrator":
            return ConditionChange(kind, False, unreachable.reason, unreachable.message)
        return ConditionChange(kind, True, Reason.READY, "" if components else NO_PODS)

    return tuple(condition(role, components) for role, components in wanted.items())


def closed_readiness(status: RLRunStatus, reason: str, problem: Problem | None) -> tuple[ConditionChange, ...]:
    """Return the changes of the readiness conditions of a run whose attempt has ended.

    `problem` is reported for the role that it names. Conditions that already report a problem are left unchanged; all
    others get `reason`.
    """
    changes = []
    for role, kind in CONDITION_OF.items():
        condition = find_condition(status, kind)
        if problem and blamed_role(problem) == role and problem.reason != Reason.ORCHESTRATOR_FAILED:
            changes.append(ConditionChange(kind, False, problem.reason, problem.message))
        elif condition is None or condition.status.value == "True" or _was_waiting(kind, condition.reason):
            changes.append(ConditionChange(kind, False, reason))
    return tuple(changes)


def _was_waiting(kind: ConditionType, reason: str | None) -> bool:
    is_starting = reason in (*STARTING_REASONS, Reason.POOL_RESTARTING)
    return is_starting or is_wait(reason) or _is_silence(kind, reason)


def is_wait(reason: str | None) -> bool:
    """Return whether the orchestrator reports this reason while it waits."""
    return (reason or "").startswith("WaitingFor")


def blocking_problem(status: RLRunStatus) -> Problem | None:
    """Return the first problem among the conditions, in the order of a run's start, or None."""
    for kind in START_CONDITIONS:
        condition = find_condition(status, kind)
        if (
            condition is not None
            and condition.status.value != "True"
            and condition.reason not in (Reason.NOT_STARTED, Reason.NOT_QUEUED, *STARTING_REASONS)
        ):
            return Problem(reason=condition.reason, message=condition.message)
    for kind in CONDITION_OF.values():
        condition = find_condition(status, kind)
        if condition is not None and condition.reason in STARTING_REASONS and not is_true(status, "Running"):
            return Problem(reason=condition.reason, message=f"{kind}: {condition.message}")
    return None


DIAGNOSIS_REASONS = frozenset([*TrainingIssue, *Hint])
PROGRESS_FIELDS = frozenset(
    {
        *("version", "step", "reward", "policy_version", "eta_seconds", "last_step_time", "mismatch_kl"),
        *("groups", "rollout_errors"),
    }
)
"""Fields of a report that change with each step. A change of any other field requires a reconcile."""


def moves_progress_only(before: RunStatus, after: RunStatus) -> bool:
    """Return whether two reports differ only in the progress, and no step is repeated."""
    return after.step >= before.step and all(
        getattr(before, name) == getattr(after, name) for name in RunStatus.model_fields.keys() - PROGRESS_FIELDS
    )


def progress_change(status: RLRunStatus, report: RunStatus, now: datetime) -> StatusFields:
    """Return the status fields for progress and group counters.

    Estimates and groups in flight change with every poll, and the policy version changes after each step. These fields
    are only updated together with other changes (including the end of the run), so that a run between two steps causes
    no writes. The time of a step is the time at which the operator first observed the step, because the pod's clock may
    differ from the API server's.
    """
    old, fields = status.progress, StatusFields()
    if not _knows_progress(status, report):
        return fields
    new = Progress(
        step=report.step,
        max_steps=report.max_steps,
        # Round to four digits, because kubectl prints the number unformatted. The metrics have the exact value.
        reward=None if report.reward is None else round(report.reward, 4),
        policy_version=report.policy_version,
        eta_seconds=None if report.eta_seconds is None else round(report.eta_seconds),
        last_step_time=(_step_time(old, report) or now) if report.last_step_time else None,
        mismatch_kl=report.mismatch_kl,
    )
    shown_later: dict[str, object] = {"eta_seconds": new.eta_seconds}
    if report.phase in (RunPhase.starting, RunPhase.running):
        shown_later["policy_version"] = new.policy_version
    moved = old is None or old.model_copy(update=shown_later) != new
    if moved:
        fields["progress"] = new
    shown = status.groups
    if shown is None or _ended_counts(report.groups) != _ended_counts(shown) or moved:
        fields["groups"] = Groups(**report.groups.model_dump())
    return fields


def _step_time(old: Progress | None, report: RunStatus) -> datetime | None:
    """Return the recorded time of the report's step, or None if the operator observes this step for the first time."""
    return old.last_step_time if old is not None and old.step == report.step else None


def _ended_counts(groups: GroupCounts | Groups) -> tuple[int, int, int, int]:
    return groups.trained, groups.filtered, groups.errored, groups.stale


def _knows_progress(status: RLRunStatus, report: RunStatus) -> bool:
    """Return whether the report contains the run's progress.

    A restarted orchestrator that has not loaded the run's state yet reports zero steps and no start time. Its report
    must not replace the recorded progress.
    """
    unread = report.step == 0 and report.started_at is None
    return not unread or status.progress is None or status.progress.step == 0


def has_started(report: RunStatus) -> bool:
    """Return whether the first step of this attempt has started."""
    return report.phase in (RunPhase.running, RunPhase.completed)


def warning_conditions(status: RLRunStatus, report: RunStatus) -> tuple[ConditionChange, ...]:
    """Return the conditions for the orchestrator's warnings.

    Reward functions and training health have their own conditions; all other warnings share one condition.
    """
    rewards = next((w for w in report.warnings if w.reason.startswith("RewardFunction")), None)
    changes = [*_training_conditions(report)]
    if _knows_progress(status, report):
        changes.insert(0, _rewards_condition(rewards, report))
    others = [w for w in report.warnings if w is not rewards and w.reason not in DIAGNOSIS_REASONS]
    if others:
        changes.append(ConditionChange("Warnings", True, others[0].reason, "; ".join(w.message for w in others)))
    elif find_condition(status, ConditionType.WARNINGS):
        changes.append(ConditionChange("Warnings", False, Reason.NO_WARNINGS))
    return tuple(changes)


def _rewards_condition(warning: Problem | None, report: RunStatus) -> ConditionChange:
    kind = ConditionType.REWARD_FUNCTIONS_HEALTHY
    if warning:
        return ConditionChange(kind, False, warning.reason, warning.message)
    if report.reward_errors:
        return ConditionChange(
            kind,
            False,
            Reason.REWARD_FUNCTION_ERRORS,
            f"Rollouts without a valid reward, which are not used for training: {report.reward_errors}. See the logs "
            "of the environment pods.",
        )
    return ConditionChange(kind, True, Reason.NO_ERRORS)


def _training_conditions(report: RunStatus) -> tuple[ConditionChange, ...]:
    """Return the condition for training health, or an empty tuple if there is nothing to report yet.

    The condition is False with issues, and otherwise True, possibly with a hint about throughput.
    """
    issues = [w for w in report.warnings if w.reason in set(TrainingIssue)]
    hints = [w for w in report.warnings if w.reason in set(Hint)]
    if issues:
        message = " ".join(w.message for w in issues)
        return (ConditionChange(ConditionType.TRAINING_HEALTHY, False, issues[0].reason, message),)
    if hints:
        return (ConditionChange(ConditionType.TRAINING_HEALTHY, True, hints[0].reason, hints[0].message),)
    if report.step > 0:
        return (ConditionChange(ConditionType.TRAINING_HEALTHY, True, Reason.NOTHING_UNUSUAL),)
    return ()
