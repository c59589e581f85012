"""The order of writes: a decision is stored before the pods it was read from are deleted."""

import contextlib
from collections.abc import Callable

import pytest

from tests.support.fake_cluster import Crash
from tests.support.operator_world import World


@pytest.mark.parametrize("crash_at", range(8))
@pytest.mark.parametrize(("action", "phase"), [("Fail", "Failed"), ("RestartRun", "Pending")])
async def test_failure_decision_survives_a_crash_at_any_write(
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
    assert world.cluster.all("ReplicaSet") == []
