"""What nobody could find out again is written before what it was read from is deleted; clocks may be set back."""

import contextlib
from collections.abc import Callable
from datetime import timedelta

import pytest
from rlrun.api.run_status import RLRunStatus
from rlrun.kube.conditions import seconds
from rlrun_operator.planning.policies.restart_backoff import next_restart, remaining_wait

from tests.support.operator_world import START, Crash, World, manifest

ROOT = "s3://rlrun/team/uid-1"


@pytest.mark.parametrize("crash_at", range(8))
@pytest.mark.parametrize(("action", "phase"), [("Fail", "Failed"), ("RestartRun", "Pending")])
async def test_a_verdict_is_not_forgotten_with_the_pods_it_was_about(
    make_world: Callable[..., World], crash_at: int, action: str, phase: str
) -> None:
    world = make_world(failurePolicy={"rules": [{"action": action, "exitCodes": [9]}]})
    await world.start()
    trainer = world.cluster.find("Pod", "reverse-trainer-0")
    assert trainer
    trainer["status"]["containerStatuses"][0] |= {"restartCount": 1, "lastState": {"terminated": {"exitCode": 9}}}
    world.cluster.put(trainer)
    world.cluster.crash_after = crash_at
    with contextlib.suppress(Crash):
        await world.reconcile()
    world.cluster.crash_after = None
    await world.reconcile(2)
    assert world.status["phase"] == phase
    assert world.status.get("runRestarts", 0) == (action == "RestartRun")
    assert world.cluster.all("Deployment") == []


async def test_no_object_says_ready_of_files_that_a_deletion_has_begun_to_take(
    make_world: Callable[..., World],
) -> None:
    world = make_world(artifactPolicy="Delete")
    await world.start()
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000001"] = manifest(1)
    await world.reconcile()
    world.cluster.request_deletion(world.run)
    await world.reconcile()
    assert world.cluster.all("RLCheckpoint")

    async def die(*_: object) -> None:
        raise Crash

    world.artifacts.purge = die  # type: ignore[method-assign, assignment]
    with pytest.raises(Crash):
        await world.reconcile()
    assert world.cluster.all("RLCheckpoint") == []


async def test_a_clock_that_is_set_back_makes_no_time_negative(world: World) -> None:
    await world.start()
    world.clock.advance(-7200)
    world.change_spec(suspend=True)
    await world.reconcile()
    assert world.status["phase"] == "Suspended"
    assert world.status.get("pastActiveSeconds", 0) >= 0
    assert seconds(START, START - timedelta(hours=1)) == 0


def test_a_restart_does_not_wait_for_a_clock_that_was_set_back() -> None:
    wait, due = next_restart(RLRunStatus(attempt_start_time=START), START)
    status = RLRunStatus(restart_backoff_seconds=wait, next_restart_time=due)
    assert remaining_wait(status, START) == 10
    assert remaining_wait(status, START + timedelta(seconds=4)) == 6
    assert remaining_wait(status, START - timedelta(hours=1)) == 0
