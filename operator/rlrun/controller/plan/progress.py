"""The orchestrator's numbers in the run's status."""

from rlrun.controller.plan.draft import Draft
from rlrun.schema.diagnosis import Hint, Trouble
from rlrun.schema.run_status import Groups, Progress
from rlrun.schema.wire import GroupCounts, RunPhase, RunStatus

DIAGNOSES = frozenset([*Trouble, *Hint])


def show_progress(draft: Draft, told: RunStatus) -> None:
    """Copies progress and group counters.

    Estimates and groups in flight change with every poll; they are taken along when something else has changed, so
    that a run between two steps costs no write.
    """
    old = draft.status.progress
    new = Progress(
        step=told.step,
        max_steps=told.max_steps,
        reward=_for_people(told.reward),
        policy_version=told.policy_version,
        eta_seconds=None if told.eta_seconds is None else round(told.eta_seconds),
        last_step_time=told.last_step_time.replace(microsecond=0) if told.last_step_time else None,
        mismatch_kl=told.mismatch_kl,
    )
    if old is None or old.model_copy(update={"eta_seconds": new.eta_seconds}) != new:
        draft.status.progress = new
    groups = Groups(**told.groups.model_dump())
    shown = draft.status.groups
    if shown is None or _ended(told.groups) != _ended(shown) or draft.status.progress != old:
        draft.status.groups = groups


def _for_people(reward: float | None) -> float | None:
    """Four digits: columns print numbers as they are, and the exact ones are in the run's metrics."""
    return None if reward is None else round(reward, 4)


def _ended(groups: GroupCounts | Groups) -> tuple[int, int, int, int]:
    return groups.trained, groups.filtered, groups.errored, groups.stale


def has_begun(told: RunStatus) -> bool:
    """Whether the first step of this attempt has begun."""
    return told.phase in (RunPhase.running, RunPhase.completed)


def show_training(draft: Draft, told: RunStatus) -> None:
    """What the metrics say of the training: False with the worst trouble, True with a hint for more speed."""
    troubles = [w for w in told.warnings if w.reason in set(Trouble)]
    hints = [w for w in told.warnings if w.reason in set(Hint)]
    if troubles:
        draft.set("TrainingHealthy", False, troubles[0].reason, " ".join(w.message for w in troubles))
    elif hints:
        draft.set("TrainingHealthy", True, hints[0].reason, hints[0].message)
    elif told.step > 0:
        draft.set("TrainingHealthy", True, "NothingUnusual")


def show_warnings(draft: Draft, told: RunStatus) -> None:
    """Reward functions that fail and training that leads nowhere have conditions of their own; the rest shares one."""
    rewards = next((w for w in told.warnings if w.reason.startswith("RewardFunction")), None)
    if rewards:
        draft.set("RewardFunctionsHealthy", False, rewards.reason, rewards.message)
    elif told.reward_errors:
        draft.set(
            "RewardFunctionsHealthy",
            False,
            "RewardFunctionErrors",
            f"{told.reward_errors} rollouts had no valid reward; they are not trained on. Look at the log of the "
            "environment pods.",
        )
    else:
        draft.set("RewardFunctionsHealthy", True, "NoErrors")
    show_training(draft, told)
    others = [w for w in told.warnings if w is not rewards and w.reason not in DIAGNOSES]
    if others:
        draft.set("Warnings", True, others[0].reason, "; ".join(w.message for w in others))
    elif draft.condition("Warnings"):
        draft.set("Warnings", False, "NoWarnings")
