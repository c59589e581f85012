"""Readiness of the roles, and the role that a problem is about.

The diagnosis of the training as the run's condition TrainingHealthy.
"""

import pytest
from rlrun.api.base.kubernetes_types import Condition, ConditionStatus
from rlrun.api.run_status import Groups, Progress, RLRunStatus
from rlrun.constants import Hint, TrainingIssue
from rlrun.kube.conditions import find_condition
from rlrun.kube.pods import Pod
from rlrun.protocol.orchestrator import GroupCounts, RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun_operator.planning.actions import StatusChange
from rlrun_operator.planning.pod_problems import PodProblem
from rlrun_operator.planning.readiness import (
    blamed_role,
    expected_pods,
    moves_progress_only,
    progress_change,
    readiness_conditions,
    warning_conditions,
)
from rlrun_operator.planning.status import apply_change

from tests.support.built_children import resolved
from tests.support.clocks import START
from tests.support.cluster_objects import pod
from tests.support.expectations import present
from tests.support.run_states import at


@pytest.mark.parametrize(
    ("reason", "role"),
    [
        ("WaitingForTrainer", "trainer"),
        ("WaitingForInference", "inference"),
        ("EnvironmentPackageMissing", "environment"),
        ("S3AccessDenied", "orchestrator"),
    ],
)
def test_problem_names_the_role_it_is_about(reason: str, role: str) -> None:
    assert blamed_role(Problem(reason=reason, message="")) == role


@pytest.mark.parametrize(
    ("is_ready", "pod_reason", "waiting_for", "expected"),
    [
        (True, None, None, "OrchestratorUnreachable"),
        (False, None, None, "Starting"),
        (True, "ContainerCrashed", None, "ContainerCrashed"),
        (True, None, "S3AccessDenied", "S3AccessDenied"),
    ],
)
def test_causes_come_before_an_orchestrator_that_does_not_answer(
    is_ready: bool, pod_reason: str | None, waiting_for: str | None, expected: str
) -> None:
    found = pod("orchestrator", ready=is_ready)
    problems = []
    if pod_reason:
        problems = [PodProblem("orchestrator", "orchestrator", Problem(reason=pod_reason, message=""))]
    waiting = Problem(reason=waiting_for, message="") if waiting_for else None
    silent = Problem(reason="OrchestratorUnreachable", message="")
    wanted = {"orchestrator": {"orchestrator": 1}, "trainer": {"trainer": 1}}
    conditions = readiness_conditions(wanted, [Pod(found), Pod(pod("trainer", ready=True))], problems, waiting, silent)
    assert [c.reason for c in conditions] == [expected, "Ready"]


def test_readiness_conditions_name_the_missing_pods() -> None:
    wanted = {"inference": {"inference": 3}, "environment": {"env-0": 1, "env-1": 1}}
    pods = [pod("inference", uid="a", ready=True), pod("environment", "env-1", ready=True)]
    messages = {c.type: c.message for c in readiness_conditions(wanted, list(map(Pod, pods)), [], None)}
    assert "inference (2)" in messages["InferenceReady"]
    assert messages["EnvironmentsReady"].endswith("env-0")


def test_all_replicas_of_an_environment_are_expected() -> None:
    found = resolved(env=[{"id": "o/e", "replicas": 3}], eval={"env": [{"id": "o/g"}]})
    assert expected_pods(found)["environment"] == {"env-0": 3, "eval-0": 1}


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
    found = present(condition("TrainingHealthy", look))
    assert (found.status, found.reason, found.message) == (ConditionStatus.true, hint, "more replicas")
    assert condition("Warnings", look) is None


def test_the_worst_training_issue_is_the_reason_and_the_message_has_all() -> None:
    flat = Problem(reason=TrainingIssue.reward_flat_at_zero, message="nothing to learn from.")
    slow = Problem(reason=TrainingIssue.throughput_stalled, message="steps are slow.")
    found = present(condition("TrainingHealthy", told(flat, slow)))
    assert (found.reason, found.message) == ("RewardFlatAtZero", "nothing to learn from. steps are slow.")


def test_warning_is_cleared_after_recovery_and_other_warnings_stay() -> None:
    flat = Problem(reason=TrainingIssue.reward_flat_at_zero, message="nothing to learn from.")
    looks = told(flat), told(OTHER)
    found = present(condition("TrainingHealthy", *looks))
    assert (found.status, found.reason) == (ConditionStatus.true, "NothingUnusual")
    assert present(condition("Warnings", *looks)).reason == "RolloutErrors"


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
        status,
        StatusChange(warning_conditions(status, new_process), progress_change(status, new_process, START)),
        START,
    )
    assert after == status


def test_the_first_process_reports_from_its_start() -> None:
    status = RLRunStatus()
    assert progress_change(status, RunStatus(phase=RunPhase.starting, max_steps=100), START)["progress"] == Progress(
        step=0, max_steps=100
    )


def test_a_process_that_lost_steps_reports_the_step_it_continues_from() -> None:
    status = training(step=18)
    report = RunStatus(
        phase=RunPhase.starting, step=15, max_steps=100, started_at=START, groups=GroupCounts(trained=36)
    )
    change = progress_change(status, report, START)
    assert change["progress"] is not None
    assert change["progress"].step == 15


@pytest.mark.parametrize(("phase", "shown"), [(RunPhase.running, 10), (RunPhase.completed, 12), (RunPhase.failed, 12)])
def test_a_publication_alone_is_shown_only_at_the_end_of_the_run(phase: RunPhase, shown: int) -> None:
    report = told(step=12).model_copy(update={"started_at": START, "policy_version": 10})
    status = apply_change(RLRunStatus(), StatusChange((), progress_change(RLRunStatus(), report, START)), START)
    published = report.model_copy(update={"policy_version": 12, "phase": phase})
    after = apply_change(status, StatusChange((), progress_change(status, published, START)), START)
    assert after.progress is not None
    assert after.progress.policy_version == shown
    step = published.model_copy(update={"step": 13, "phase": RunPhase.running})
    after = apply_change(after, StatusChange((), progress_change(after, step, START)), START)
    assert after.progress is not None
    assert after.progress.policy_version == 12, "a step shows it"


CHANGES: dict[str, object] = {
    "version": "b",
    "phase": RunPhase.completed,
    "step": 13,
    "max_steps": 200,
    "reward": 0.5,
    "policy_version": 13,
    "eta_seconds": 1.0,
    "last_step_time": START,
    "started_at": START,
    "mismatch_kl": 0.1,
    "groups": GroupCounts(trained=1),
    "reward_errors": 1,
    "rollout_errors": 1,
    "waiting_for": OTHER,
    "environments": [None],
    "warnings": [OTHER],
    "problem": OTHER,
}


@pytest.mark.parametrize("field", RunStatus.model_fields)
def test_only_these_fields_of_a_report_are_progress(field: str) -> None:
    before = told()
    after = before.model_copy(update={field: CHANGES[field]})
    progress = {"version", "step", "reward", "policy_version", "eta_seconds", "last_step_time", "mismatch_kl"}
    assert moves_progress_only(before, after) is (field in {*progress, "groups", "rollout_errors"})


def test_a_step_that_is_repeated_is_more_than_progress() -> None:
    assert moves_progress_only(told(step=12), told(step=12))
    assert not moves_progress_only(told(step=12), told(step=11))


def test_a_step_has_the_time_at_which_the_operator_saw_it_first() -> None:
    """The pod's clock may be wrong: nothing compares it with the operator's."""
    status = RLRunStatus()
    for step, seen, shown in ((5, 10, 10), (5, 20, 10), (6, 30, 30), (4, 40, 40)):
        report = told(step=step).model_copy(update={"started_at": START, "last_step_time": at(step - 86_400)})
        status = apply_change(status, StatusChange((), progress_change(status, report, at(seen))), START)
        assert status.progress is not None
        assert status.progress.last_step_time == at(shown)
