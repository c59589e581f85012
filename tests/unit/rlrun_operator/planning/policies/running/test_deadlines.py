"""Deadlines of the start, of progress and of the whole run."""

from datetime import timedelta
from typing import Any

import pytest
from rlrun.api.base.phases import Phase
from rlrun.api.run_status import Progress, RLRunStatus
from rlrun.kube.conditions import seconds
from rlrun.protocol.problem import Problem
from rlrun_operator.planning.plan.actions import ConditionChange, PlanPart
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.plan.status_builder import apply_change
from rlrun_operator.planning.policies.running.deadlines import enforce_deadlines, expired_deadline, plan_waiting

from tests.support.clocks import START
from tests.support.cluster_objects import run_object
from tests.support.expectations import present
from tests.support.operator_world import SETTINGS, World
from tests.support.run_states import at, run_spec, started

Obj = dict[str, Any]


@pytest.mark.proves("startDeadlineSeconds", "stallDeadlineSeconds", "activeDeadlineSeconds")
@pytest.mark.parametrize(
    ("after", "running_since", "limits", "expected"),
    [
        (59, None, {"startDeadlineSeconds": 60}, None),
        (60, None, {"startDeadlineSeconds": 60}, "StartDeadlineExceeded"),
        (600, 30, {"startDeadlineSeconds": 60}, None),
        (629, 30, {"stallDeadlineSeconds": 600}, None),
        (630, 30, {"stallDeadlineSeconds": 600}, "StallDeadlineExceeded"),
        (99, 30, {"activeDeadlineSeconds": 100}, None),
        (100, 30, {"activeDeadlineSeconds": 100}, "ActiveDeadlineExceeded"),
    ],
)
def test_deadlines(after: float, running_since: float | None, limits: Obj, expected: str | None) -> None:
    status = started()
    if running_since is not None:
        status = started(ConditionChange("Running", True, "Running"), when=running_since)
    expired = expired_deadline(status, run_spec(**limits), at(after), None)
    assert (expired.reason if expired else None) == expected


@pytest.mark.parametrize(
    ("step", "timeout", "after", "expired"),
    [
        (9, 7200, 3600, True),
        (10, 7200, 3600, False),
        (10, 7200, 9799, False),
        (10, 7200, 9800, True),
        (10, 60, 3599, False),
        (10, 60, 3600, True),
    ],
)
def test_the_stall_deadline_waits_for_the_last_evaluation(step: int, timeout: int, after: float, expired: bool) -> None:
    spec = run_spec(maxSteps=10, eval={"env": [{"id": "acme/exam", "rolloutTimeoutSeconds": timeout}]})
    progress = Progress(step=step, max_steps=10, last_step_time=START)
    status = started(ConditionChange("Running", True, "Running")).model_copy(update={"progress": progress})
    assert (expired_deadline(status, spec, at(after), None) is not None) is expired


def test_start_deadline_takes_over_the_reason_of_what_blocks() -> None:
    blocking = Problem(reason="ImagePullFailed", message="image x")
    expired = present(expired_deadline(started(), run_spec(startDeadlineSeconds=60), at(60), blocking))
    assert expired.reason == "ImagePullFailed"
    assert "image x" in expired.message


async def test_clock_set_back_makes_no_duration_negative(world: World) -> None:
    await world.start()
    world.clock.advance(-7200)
    await world.change(suspend=True)
    assert world.status["phase"] == "Suspended"
    assert world.status.get("pastActiveSeconds", 0) >= 0
    assert seconds(START, START - timedelta(hours=1)) == 0


def waiting(status: RLRunStatus, after: float, **spec: Any) -> tuple[PlanPart, RLRunStatus]:
    """The plan of a run that waits for its model, and its status afterwards."""
    problem = Problem(reason="ModelNotFound", message="There is no RLModel for tiny/model.")
    part = plan_waiting(RunObservation(run_object()), status, run_spec(**spec), SETTINGS, at(after), problem)
    assert part.final, "no child may be created"
    return part, apply_change(status, part.status, at(after))


def conditions(status: RLRunStatus) -> dict[str, tuple[str, str | None]]:
    return {found.type: (found.status.value, found.reason) for found in status.conditions}


def test_waiting_run_is_pending_and_says_what_has_not_started() -> None:
    part, status = waiting(started(ConditionChange("TrainerReady", True, "Ready")), 5, startDeadlineSeconds=60)
    assert part.requeue_after == SETTINGS.poll_seconds
    assert (status.phase, status.reason, status.completion_time) == (Phase.pending, "ModelNotFound", None)
    assert status.message == "There is no RLModel for tiny/model."
    assert conditions(status) == {
        "Running": ("False", "ModelNotFound"),
        "TrainerReady": ("True", "Ready"),
        "InferenceReady": ("False", "NotStarted"),
        "EnvironmentsReady": ("False", "NotStarted"),
        "OrchestratorReady": ("False", "NotStarted"),
        "Completed": ("False", "NotCompleted"),
        "Failed": ("False", "NotFailed"),
    }


@pytest.mark.parametrize(("after", "expected"), [(100, 10), (1000, 20), (3590, 10)])
def test_a_run_that_waits_long_is_looked_at_less_often(after: float, expected: float) -> None:
    part, _ = waiting(started(ConditionChange("Running", False, "Starting")), after, startDeadlineSeconds=3600)
    assert part.requeue_after == expected


def test_run_that_trains_stays_running_while_it_waits() -> None:
    part, status = waiting(started(ConditionChange("Running", True, "Running")), 500)
    assert part.requeue_after == SETTINGS.poll_seconds
    assert (status.phase, status.reason) == (Phase.running, "ModelNotFound")
    assert conditions(status)["Running"] == ("True", "Running")
    assert "TrainerReady" not in conditions(status)


def test_waiting_ends_at_the_start_deadline() -> None:
    _, status = waiting(started(), 60, startDeadlineSeconds=60)
    assert (status.phase, status.reason) == (Phase.failed, "ModelNotFound")
    assert conditions(status)["Failed"] == ("True", "ModelNotFound")


def test_expired_deadline_ends_the_run_without_the_writes_of_earlier_policies() -> None:
    def enforced(after: float) -> PlanPart | None:
        spec = run_spec(startDeadlineSeconds=60)
        return enforce_deadlines(RunObservation(run_object()), started(), spec, SETTINGS, at(after))

    assert enforced(59) is None
    part = present(enforced(60))
    assert part.status.fields["phase"] is Phase.failed
    assert part.discard_writes
    assert part.final
