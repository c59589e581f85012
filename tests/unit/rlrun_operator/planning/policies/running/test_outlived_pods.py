"""Pods that an injected container keeps running after the end of the run's process."""

import pytest
from rlrun.kube.objects import Obj

from tests.support.cluster_objects import inject, terminated
from tests.support.fake_kubelet import step_kubelet
from tests.support.operator_world import World
from tests.unit.rlrun_operator.planning.policies.running.conftest import orchestrator_of


@pytest.fixture
async def meshed(world: World) -> World:
    """A run that trains, with a proxy in the orchestrator's pod."""
    world.cluster.time = world.clock
    await world.train()
    await world.put(inject(orchestrator_of(world)))
    return world


def crashes(world: World) -> int:
    return next(int(c["crashes"]) for c in world.status["components"] if c["name"] == "orchestrator")


def end(world: World, code: int, message: str = "") -> Obj:
    """The orchestrator's container ends; the proxy runs, and so does the pod."""
    found = orchestrator_of(world)
    found["status"]["containerStatuses"][0]["state"] = terminated(code, message=message)
    found["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    world.cluster.put(found)
    return found


async def test_a_crashed_orchestrator_is_counted_and_replaced(meshed: World) -> None:
    old = end(meshed, 1)
    await meshed.reconcile()
    assert meshed.cluster.find("Pod", old["metadata"]["name"]) is None
    assert (crashes(meshed), meshed.status["phase"]) == (1, "Running")
    assert "OutlivedPodDeleted" in [e["reason"] for e in meshed.cluster.events]
    await meshed.reconcile()
    step_kubelet(meshed.cluster)
    await meshed.reconcile()
    assert crashes(meshed) == 1
    assert orchestrator_of(meshed)["metadata"]["uid"] != old["metadata"]["uid"]


@pytest.mark.parametrize(("code", "phase"), [(0, "Completed"), (64, "Failed")])
async def test_an_end_with_a_final_status_ends_the_run_and_its_pods(meshed: World, code: int, phase: str) -> None:
    end(meshed, code, '{"reason": "WandbKeyMissing", "message": "m"}' if code else "")
    assert await meshed.phase(2) == phase
    assert meshed.cluster.all("Job") == [], "the Job would keep the proxy's pod"


async def test_a_proxy_that_restarts_does_not_fail_the_run(meshed: World) -> None:
    found = orchestrator_of(meshed)
    found["status"]["containerStatuses"][1] |= {"restartCount": 9, "lastState": terminated(1)}
    meshed.cluster.put(found)
    await meshed.reconcile(2)
    assert (meshed.status["phase"], meshed.status.get("restarts", 0)) == ("Running", 0)
