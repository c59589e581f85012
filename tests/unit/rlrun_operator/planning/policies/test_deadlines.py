"""Deadlines of the start, of progress and of the whole run."""

from datetime import timedelta
from typing import Any

import pytest
from rlrun.api.run_status import Progress
from rlrun.kube.conditions import seconds
from rlrun.protocol.problem import Problem
from rlrun_operator.planning.plan.actions import ConditionChange
from rlrun_operator.planning.policies.deadlines import expired_deadline

from tests.support.clocks import START
from tests.support.operator_world import World
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
    ("step", "after", "expired"), [(9, 3600, True), (10, 3600, False), (10, 9799, False), (10, 9800, True)]
)
def test_the_stall_deadline_waits_for_the_last_evaluation(step: int, after: float, expired: bool) -> None:
    spec = run_spec(maxSteps=10, eval={"env": [{"id": "acme/exam", "rolloutTimeoutSeconds": 7200}]})
    progress = Progress(step=step, max_steps=10, last_step_time=START)
    status = started(ConditionChange("Running", True, "Running")).model_copy(update={"progress": progress})
    assert (expired_deadline(status, spec, at(after), None) is not None) is expired


def test_start_deadline_takes_over_the_reason_of_what_blocks() -> None:
    blocking = Problem(reason="ImagePullFailed", message="image x")
    expired = expired_deadline(started(), run_spec(startDeadlineSeconds=60), at(60), blocking)
    assert expired
    assert expired.reason == "ImagePullFailed"
    assert "image x" in expired.message


async def test_clock_set_back_makes_no_duration_negative(world: World) -> None:
    await world.start()
    world.clock.advance(-7200)
    world.change_spec(suspend=True)
    await world.reconcile()
    assert world.status["phase"] == "Suspended"
    assert world.status.get("pastActiveSeconds", 0) >= 0
    assert seconds(START, START - timedelta(hours=1)) == 0
