"""The diagnosis of the training as the run's condition TrainingHealthy."""

import pytest
from rlrun.api.base.kubernetes_types import Condition, ConditionStatus
from rlrun.api.run_status import Groups, Progress, RLRunStatus
from rlrun.constants import Hint, TrainingIssue
from rlrun.kube.conditions import find_condition
from rlrun.protocol.orchestrator import GroupCounts, RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun_operator.planning.diagnosis.run_progress import progress_change, warning_conditions
from rlrun_operator.planning.plan.actions import StatusChange
from rlrun_operator.planning.plan.status_builder import apply_change

from tests.support.clocks import START

OTHER = Problem(reason="RolloutErrors", message="3 rollouts failed")


def told(*warnings: Problem, step: int = 12) -> RunStatus:
    return RunStatus(phase=RunPhase.running, step=step, max_steps=100, warnings=list(warnings))


def status_of(*looks: RunStatus) -> RLRunStatus:
    status = RLRunStatus()
    for look in looks:
        status = apply_change(status, StatusChange(warning_conditions(status, look)), START)
    return status


def condition(kind: str, *looks: RunStatus) -> Condition | None:
    return find_condition(status_of(*looks), kind)


def shown(*looks: RunStatus) -> tuple[ConditionStatus, str] | None:
    found = condition("TrainingHealthy", *looks)
    return (found.status, found.reason) if found else None


@pytest.mark.parametrize("trouble", TrainingIssue)
def test_every_trouble_makes_the_condition_false(trouble: TrainingIssue) -> None:
    problem = Problem(reason=trouble, message="what to do")
    assert shown(told(OTHER, problem)) == (ConditionStatus.false, trouble)


@pytest.mark.parametrize("hint", Hint)
def test_a_hint_leaves_the_run_healthy(hint: Hint) -> None:
    look = told(Problem(reason=hint, message="more replicas"))
    found = condition("TrainingHealthy", look)
    assert found is not None
    assert (found.status, found.reason, found.message) == (ConditionStatus.true, hint, "more replicas")
    assert condition("Warnings", look) is None


def test_the_worst_training_issue_is_the_reason_and_the_message_has_all() -> None:
    flat = Problem(reason=TrainingIssue.reward_flat_at_zero, message="nothing to learn from.")
    slow = Problem(reason=TrainingIssue.throughput_stalled, message="steps are slow.")
    found = condition("TrainingHealthy", told(flat, slow))
    assert found is not None
    assert found.reason == "RewardFlatAtZero"
    assert found.message == "nothing to learn from. steps are slow."


def test_warning_is_cleared_after_recovery_and_other_warnings_stay() -> None:
    flat = Problem(reason=TrainingIssue.reward_flat_at_zero, message="nothing to learn from.")
    looks = told(flat), told(OTHER)
    found = condition("TrainingHealthy", *looks)
    assert found is not None
    assert (found.status, found.reason) == (ConditionStatus.true, "NothingUnusual")
    warnings = condition("Warnings", *looks)
    assert warnings is not None
    assert warnings.reason == "RolloutErrors"


def test_before_the_first_step_nothing_is_known() -> None:
    assert shown(told(step=0)) is None


def training(step: int) -> RLRunStatus:
    """Status of a run that has made `step` steps, with errors of rewards."""
    report = told(step=step).model_copy(update={"started_at": START, "reward_errors": 3})
    fields = {"progress": Progress(step=step, max_steps=100), "groups": Groups(trained=2 * step)}
    return apply_change(RLRunStatus(), StatusChange(warning_conditions(RLRunStatus(), report), fields), START)


@pytest.mark.parametrize("phase", [RunPhase.starting, RunPhase.failed])
def test_a_new_process_that_has_not_read_its_state_does_not_take_the_progress_back(phase: RunPhase) -> None:
    status = training(step=18)
    new_process = RunStatus(phase=phase, max_steps=100)
    after = apply_change(
        status, StatusChange(warning_conditions(status, new_process), progress_change(status, new_process)), START
    )
    assert after == status


def test_the_first_process_reports_from_its_start() -> None:
    status = RLRunStatus()
    assert progress_change(status, RunStatus(phase=RunPhase.starting, max_steps=100))["progress"] == Progress(
        step=0, max_steps=100
    )


def test_a_process_that_lost_steps_reports_the_step_it_continues_from() -> None:
    status = training(step=18)
    report = RunStatus(
        phase=RunPhase.starting, step=15, max_steps=100, started_at=START, groups=GroupCounts(trained=36)
    )
    change = progress_change(status, report)
    assert change["progress"] is not None
    assert change["progress"].step == 15
