"""The orchestrator's numbers in the run's status."""

from rlrun.api.run_status import Groups, Progress, RLRunStatus
from rlrun.constants import ConditionType, Hint, Reason, TrainingIssue
from rlrun.kube.conditions import find_condition
from rlrun.protocol.orchestrator import GroupCounts, RunPhase, RunStatus
from rlrun.protocol.problem import Problem

from rlrun_operator.planning.plan.actions import ConditionChange, StatusFields

DIAGNOSES = frozenset([*TrainingIssue, *Hint])


def progress_change(status: RLRunStatus, told: RunStatus) -> StatusFields:
    """Return the fields with progress and group counters.

    Estimates and groups in flight change with every poll; they are taken along when something else has changed, so
    that a run between two steps costs no write.
    """
    old, fields = status.progress, StatusFields()
    new = Progress(
        step=told.step,
        max_steps=told.max_steps,
        reward=_for_people(told.reward),
        policy_version=told.policy_version,
        eta_seconds=None if told.eta_seconds is None else round(told.eta_seconds),
        last_step_time=told.last_step_time.replace(microsecond=0) if told.last_step_time else None,
        mismatch_kl=told.mismatch_kl,
    )
    moved = old is None or old.model_copy(update={"eta_seconds": new.eta_seconds}) != new
    if moved:
        fields["progress"] = new
    shown = status.groups
    if shown is None or _ended(told.groups) != _ended(shown) or moved:
        fields["groups"] = Groups(**told.groups.model_dump())
    return fields


def _for_people(reward: float | None) -> float | None:
    """Four digits: columns print numbers as they are, and the exact ones are in the run's metrics."""
    return None if reward is None else round(reward, 4)


def _ended(groups: GroupCounts | Groups) -> tuple[int, int, int, int]:
    return groups.trained, groups.filtered, groups.errored, groups.stale


def has_started(told: RunStatus) -> bool:
    """Whether the first step of this attempt has begun."""
    return told.phase in (RunPhase.running, RunPhase.completed)


def warning_conditions(status: RLRunStatus, told: RunStatus) -> tuple[ConditionChange, ...]:
    """Return the conditions that the warnings make.

    Reward functions that fail and training that leads nowhere have conditions of their own; the rest shares one.
    """
    rewards = next((w for w in told.warnings if w.reason.startswith("RewardFunction")), None)
    changes = [_rewards_condition(rewards, told), *_training_conditions(told)]
    others = [w for w in told.warnings if w is not rewards and w.reason not in DIAGNOSES]
    if others:
        changes.append(ConditionChange("Warnings", True, others[0].reason, "; ".join(w.message for w in others)))
    elif find_condition(status, ConditionType.WARNINGS):
        changes.append(ConditionChange("Warnings", False, Reason.NO_WARNINGS))
    return tuple(changes)


def _rewards_condition(warning: Problem | None, told: RunStatus) -> ConditionChange:
    kind = ConditionType.REWARD_FUNCTIONS_HEALTHY
    if warning:
        return ConditionChange(kind, False, warning.reason, warning.message)
    if told.reward_errors:
        return ConditionChange(
            kind,
            False,
            Reason.REWARD_FUNCTION_ERRORS,
            f"{told.reward_errors} rollouts had no valid reward; they are not trained on. Look at the log of the "
            "environment pods.",
        )
    return ConditionChange(kind, True, Reason.NO_ERRORS)


def _training_conditions(told: RunStatus) -> tuple[ConditionChange, ...]:
    """Return what the metrics say of the training: False with the worst trouble, True with a hint for more speed."""
    troubles = [w for w in told.warnings if w.reason in set(TrainingIssue)]
    hints = [w for w in told.warnings if w.reason in set(Hint)]
    if troubles:
        message = " ".join(w.message for w in troubles)
        return (ConditionChange(ConditionType.TRAINING_HEALTHY, False, troubles[0].reason, message),)
    if hints:
        return (ConditionChange(ConditionType.TRAINING_HEALTHY, True, hints[0].reason, hints[0].message),)
    if told.step > 0:
        return (ConditionChange(ConditionType.TRAINING_HEALTHY, True, Reason.NOTHING_UNUSUAL),)
    return ()
