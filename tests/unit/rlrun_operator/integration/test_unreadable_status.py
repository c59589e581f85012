"""Statuses with values of another version of the operator, or of a user: they cause no decision."""

from collections.abc import Callable
from typing import Any

import pytest
from rlrun.kube.errors import ApiError
from rlrun.protocol.orchestrator import RunPhase, RunStatus

from tests.support.clocks import START
from tests.support.fake_cluster import copied
from tests.support.fake_kubelet import end_orchestrator, step_kubelet
from tests.support.operator_world import World


def running(step: int) -> RunStatus:
    return RunStatus(phase=RunPhase.running, step=step, max_steps=10, started_at=START, last_step_time=START)


async def in_attempt_2(world: World) -> None:
    """A run that was suspended once, and trains."""
    await world.start()
    for suspends in (True, False):
        await world.change(2, suspend=suspends)
    step_kubelet(world.cluster)
    await world.hear(running(3))
    assert (world.status["phase"], world.status["attempt"]) == ("Running", 2)


def change_status(world: World, **changes: Any) -> None:
    world.cluster.put({**world.run, "status": {**world.status, **changes}})


async def assert_nothing_is_done(world: World) -> None:
    """Two reconciles, a month later, tell of the status and write nothing."""
    world.clock.advance(30 * 86400)
    before, writes = copied(world.cluster.objects), world.cluster.writes
    for _ in range(2):
        with pytest.raises(ApiError, match="cannot read the status of RLRun team/reverse: InvalidAnswer: status"):
            await world.reconcile()
    assert (world.cluster.objects, world.cluster.writes) == (before, writes)


@pytest.mark.parametrize(
    "wrong",
    [
        {"phase": "Migrating"},
        {"attempt": "second"},
        {"attemptStartTime": "lately"},
        {"startTime": "lately"},
        {"nextRestartTime": "soon"},
        {"conditions": [{"type": "Running", "status": "Mostly"}]},
        {"queue": {"admittedTime": "lately"}},
    ],
    ids="".join,
)
async def test_a_run_that_trains_goes_on(world: World, wrong: dict[str, Any]) -> None:
    await in_attempt_2(world)
    good = world.status
    change_status(world, **wrong)
    await assert_nothing_is_done(world)
    change_status(world, **good, **{name: None for name in wrong if name not in good})
    await world.hear(running(4).model_copy(update={"last_step_time": world.clock()}))
    assert (world.status["phase"], world.status["attempt"], world.status["progress"]["step"]) == ("Running", 2, 4)


@pytest.mark.parametrize("wrong", [{"phase": "Defeated"}, {"completionTime": "lately"}], ids="".join)
async def test_a_run_that_has_failed_does_not_start_again(world: World, wrong: dict[str, Any]) -> None:
    await in_attempt_2(world)
    end_orchestrator(world.cluster, 64, "boom")
    assert await world.phase(3) == "Failed"
    change_status(world, **wrong)
    await assert_nothing_is_done(world)


async def test_values_that_no_decision_rests_on_are_left_out(world: World) -> None:
    """A pod cannot start for a reason that only a newer version knows; an older one stored a time without a zone."""
    await in_attempt_2(world)
    change_status(
        world,
        progress={**world.status["progress"], "lastStepTime": "2026-01-01T00:00:00"},
        components=[
            {**part, "pods": [{**pod, "obstacle": "NoLicence"} for pod in part["pods"]]}
            for part in world.status["components"]
        ],
        adapters=[{"step": 1}],
    )
    crashes = [(part["name"], len(part["pods"]), part.get("crashes")) for part in world.status["components"]]
    await world.hear(running(4))
    assert (world.status["phase"], world.status["attempt"], world.status["progress"]["step"]) == ("Running", 2, 4)
    assert [(part["name"], len(part["pods"]), part.get("crashes")) for part in world.status["components"]] == crashes
    assert "NoLicence" not in str(world.status)
    assert world.status.get("restarts", 0) == 0


async def test_a_run_with_an_unreadable_status_can_be_deleted(make_world: Callable[..., World]) -> None:
    world = make_world(artifactPolicy="Delete")
    await in_attempt_2(world)
    change_status(world, phase="Migrating")
    await world.put({**world.run, "metadata": {**world.run["metadata"], "deletionTimestamp": START.isoformat()}})
    assert world.cluster.all("ReplicaSet", "Job") == []
