"""Which reports move the progress of a run alone, and what its status then is."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from rlrun.api.run_status import RLRunStatus
from rlrun.kube.objects import Obj
from rlrun.protocol.orchestrator import GroupCounts, RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun_operator.planning.plan_progress import plan_progress

from tests.support.clocks import START
from tests.support.expectations import present
from tests.support.fake_cluster import copied
from tests.support.operator_world import World

PROBLEM = Problem(reason="RolloutErrors", message="3 rollouts failed")


def report(step: int, **fields: Any) -> RunStatus:
    """Return the report of a run that trains."""
    values = {"reward": step / 10, "policy_version": step, "last_step_time": START + timedelta(seconds=step)}
    return RunStatus.model_validate(
        {"phase": RunPhase.running, "step": step, "max_steps": 1000, "started_at": START, **values, **fields},
        by_name=True,
    )


@pytest.fixture
async def run(make_world: Callable[..., World]) -> Obj:
    """A run that has been shown with step 11, and uploads checkpoints every 20 steps and adapters every 15."""
    world = make_world(maxSteps=1000, checkpoints={"interval": 20}, adapters={"interval": 15})
    world.poller.answer = report(11)
    await world.start()
    await world.reconcile(2)
    assert world.status["progress"]["step"] == 11
    return copied(world.run)


def test_progress_changes_progress_and_groups_and_nothing_else(run: Obj) -> None:
    found = present(plan_progress(run, report(12, groups=GroupCounts(trained=3, in_flight=4), eta_seconds=7.6), START))
    before = RLRunStatus.parse(run["status"])
    assert found.progress is not None
    assert found.groups is not None
    assert (found.progress.step, found.progress.reward, found.progress.eta_seconds) == (12, 1.2, 8)
    assert found.groups.trained == 3
    assert found.model_copy(update={"progress": before.progress, "groups": before.groups}) == before


@pytest.mark.parametrize("step", [11, 12, 14, 16, 19])
def test_a_step_without_an_upload_is_progress_alone(run: Obj, step: int) -> None:
    if step > 14:
        run["status"]["progress"]["step"] = 15
    assert plan_progress(run, report(step), START) is not None


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(report(15), id="an adapter is due"),
        pytest.param(report(17), id="an adapter was due since"),
        pytest.param(report(20), id="a checkpoint is due"),
        pytest.param(report(1000), id="the last step"),
        pytest.param(report(10), id="a step is repeated"),
        pytest.param(report(12, max_steps=2000), id="another number of steps"),
        pytest.param(report(12, phase=RunPhase.starting), id="the orchestrator starts"),
        pytest.param(report(12, phase=RunPhase.completed), id="completed"),
        pytest.param(report(12, phase=RunPhase.failed, problem=PROBLEM), id="failed"),
        pytest.param(report(12, warnings=[PROBLEM]), id="a warning"),
        pytest.param(report(12, reward_errors=1), id="a reward without a number"),
        pytest.param(report(0, started_at=None), id="the state was not read yet"),
    ],
)
def test_a_report_that_tells_more_needs_a_reconcile(run: Obj, later: RunStatus) -> None:
    assert plan_progress(run, report(12), START) is not None
    assert plan_progress(run, later, START) is None


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, id="deleted"),
        pytest.param({"metadata": {"generation": 2}}, id="the spec has changed"),
        pytest.param({"status": {"phase": "Pending"}}, id="it does not train yet"),
        pytest.param({"status": {"phase": "Completed"}}, id="it has ended"),
        pytest.param({"status": {"progress": None}}, id="no progress is shown"),
        pytest.param({"status": {"resolved": None}}, id="the interval of its checkpoints is unknown"),
        pytest.param({"status": {"conditions": []}}, id="its conditions are not shown"),
        pytest.param({"status": {"attempt": "one"}}, id="its status is not valid"),
        pytest.param({"spec": {"maxSteps": "many"}}, id="its spec is not valid"),
    ],
)
def test_a_run_that_is_not_shown_as_training_needs_a_reconcile(run: Obj, change: Obj) -> None:
    for part, fields in change.items():
        run[part] = {**run[part], **fields}
    assert plan_progress(run, report(12), START) is None


def test_the_first_step_needs_a_reconcile_which_says_that_training_is_healthy(run: Obj) -> None:
    run["status"]["conditions"] = [c for c in run["status"]["conditions"] if c["type"] != "TrainingHealthy"]
    run["status"]["progress"]["step"] = 0
    assert plan_progress(run, report(1), START) is None


def test_without_an_interval_of_its_own_a_run_has_that_of_its_attempt(run: Obj) -> None:
    del run["spec"]["checkpoints"]
    run["status"]["resolved"]["checkpointInterval"] = 13
    assert plan_progress(run, report(12), START) is not None
    assert plan_progress(run, report(13), START) is None
    del run["status"]["resolved"]["checkpointInterval"]
    assert plan_progress(run, report(12), START) is None, "each step may have a checkpoint"
