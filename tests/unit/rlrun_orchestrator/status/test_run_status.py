"""Conditions of a run, and the status made of them and of its progress."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rlrun.api.run_status import EnvironmentPackage
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun_orchestrator.__main__ import report
from rlrun_orchestrator.data.schedule import RunSchedule
from rlrun_orchestrator.status.run_progress import RunProgress
from rlrun_orchestrator.status.run_status import build_run_status, termination_message
from rlrun_orchestrator.status.status_conditions import StatusConditions

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def problem(reason: str, message: str = "x") -> Problem:
    return Problem(reason=reason, message=message)


def package(package_id: str) -> EnvironmentPackage:
    return EnvironmentPackage(id=package_id, version="1.0", digest=f"sha256:{'a' * 64}")


def status(progress: RunProgress, conditions: StatusConditions | None = None, steps: int = 10) -> RunStatus:
    return build_run_status(progress, conditions or StatusConditions(), RunSchedule(steps))


# --- conditions -------------------------------------------------------------------------------------------------------


def test_oldest_wait_is_shown_until_resolved() -> None:
    conditions = StatusConditions()
    conditions.set_waiting("s3", problem("A"))
    conditions.set_waiting("trainer", problem("B"))
    conditions.set_waiting("s3", problem("C"))
    assert conditions.waiting_for == problem("C")
    conditions.set_waiting("s3", None)
    assert conditions.waiting_for == problem("B")
    conditions.set_waiting("trainer", None)
    conditions.set_waiting("trainer", None)
    assert conditions.waiting_for is None


def test_a_condition_lasts_until_it_is_cleared_and_replaces_its_own_reason() -> None:
    conditions = StatusConditions()
    conditions.set_condition("uploads", problem("S3Unreachable"))
    conditions.set_condition("uploads", problem("AccessDenied"))
    assert conditions.warnings == [problem("AccessDenied")]
    conditions.set_condition("uploads", None)
    assert conditions.warnings == []


def test_there_is_one_warning_per_reason_with_the_newest_message() -> None:
    conditions = StatusConditions()
    conditions.add_warning(problem("A", "old"))
    conditions.add_warning(problem("A", "new"))
    assert conditions.warnings == [problem("A", "new")]
    conditions.clear_warning("A")
    conditions.clear_warning("A")
    assert conditions.warnings == []


def test_a_condition_takes_precedence_over_a_warning_with_its_reason() -> None:
    conditions = StatusConditions()
    conditions.add_warning(problem("A", "warning"))
    conditions.set_condition("key", problem("A", "condition"))
    assert conditions.warnings == [problem("A", "condition")]


# --- status -----------------------------------------------------------------------------------------------------------


def test_the_status_has_the_steps_of_the_schedule() -> None:
    schedule = RunSchedule(4)
    schedule.extend(9)
    assert build_run_status(RunProgress(), StatusConditions(), schedule).max_steps == 9


def test_the_remaining_time_follows_the_pace_of_the_newest_steps() -> None:
    progress = RunProgress()
    assert status(progress).eta_seconds is None, "without a step there is no pace"
    for step, seconds in ((1, 1.0), (2, 3.0)):
        progress.record_step(step, 0.5, seconds, NOW)
    assert status(progress, steps=10).eta_seconds == pytest.approx(8 * 2.0)
    progress.phase = RunPhase.completed
    assert status(progress).eta_seconds == 0.0


def test_failed_rewards_and_rollouts_are_warnings_with_their_number_and_first_error() -> None:
    progress, conditions = RunProgress(), StatusConditions()
    progress.reward_errors = 7
    assert status(progress).warnings == [], "an earlier process saw them"
    progress.first_reward_error = problem("RewardFunctionError", "boom")
    conditions.add_warning(problem("RewardCollapsed"))
    assert status(progress, conditions).warnings == [
        problem(
            "RewardFunctionErrors", "7 rewards failed and are not trained on; first error: RewardFunctionError: boom"
        ),
        problem("RewardCollapsed"),
    ]


def test_a_failure_is_in_the_status() -> None:
    progress = RunProgress()
    progress.mark_failed(problem("EmptyBatches"))
    assert (status(progress).phase, status(progress).problem) == (RunPhase.failed, problem("EmptyBatches"))


# --- termination message ----------------------------------------------------------------------------------------------


def test_a_short_status_is_the_termination_message_as_it_is() -> None:
    conditions = StatusConditions()
    conditions.add_warning(problem("A"))
    whole = build_run_status(RunProgress(), conditions, RunSchedule(10), [package("me/words")])
    assert whole.environments == [package("me/words")]
    assert RunStatus.model_validate_json(termination_message(whole)) == whole


def test_a_termination_message_always_fits_and_leaves_the_status_as_it_is() -> None:
    progress, conditions = RunProgress(), StatusConditions()
    for number in range(20):
        conditions.add_warning(problem(f"Warning{number}", "x" * 500))
    conditions.set_waiting("s3", problem("S3Unreachable", "z" * 5000))
    progress.mark_failed(problem("EmptyBatches", "y" * 5000))
    whole = status(progress, conditions)
    whole.environments = [package(f"me/words-{number}") for number in range(32)]
    text = termination_message(whole)
    assert len(text) <= 4096
    assert json.loads(text)["problem"]["reason"] == "EmptyBatches"
    assert len(whole.environments) == 32
    assert (len(whole.warnings), len(whole.problem.message if whole.problem else "")) == (20, 5000)
    assert len(progress.problem.message if progress.problem else "") == 5000


def test_a_process_without_a_readable_configuration_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_TERMINATION_LOG", str(tmp_path / "log"))
    report(problem("InvalidConfiguration"))
    found = RunStatus.model_validate_json((tmp_path / "log").read_bytes())
    assert (found.phase, found.max_steps, found.problem) == (RunPhase.failed, None, problem("InvalidConfiguration"))
