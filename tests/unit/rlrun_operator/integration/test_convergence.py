"""Any order of events, and a crash at any call, lead to the same objects.

Every reconcile is a new operator process; a crash is an exception at the n-th write, which leaves exactly the writes
before it. At the end the operator is left alone until nothing changes any more.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rlrun.protocol.orchestrator import RunPhase, RunStatus

from tests.support.cluster_objects import model_object, run_object, source_secret
from tests.support.fake_artifacts import manifest
from tests.support.fake_cluster import Crash, FakeCluster
from tests.support.fake_kubelet import end_orchestrator, step_kubelet
from tests.support.fake_poller import training
from tests.support.operator_world import World

ROOT = "s3://rlrun/team/uid-1"
SPEC: dict[str, Any] = {"checkpoints": {"keepCloud": 2}, "adapters": {"keepLast": 1}}


def upload(kind: str, step: int) -> Callable[[World], None]:
    def put(world: World) -> None:
        world.artifacts.folders[f"{ROOT}/{kind}s/step-{step:06d}"] = manifest(step)

    return put


INPUTS: dict[str, Callable[[World], None]] = {
    "run": lambda w: w.cluster.put(run_object(**SPEC)),
    "model": lambda w: w.cluster.put(model_object()),
    "secret": lambda w: w.cluster.put(source_secret()),
    **{f"checkpoint {step}": upload("checkpoint", step) for step in (1, 2, 3)},
    **{f"adapter {step}": upload("adapter", step) for step in (2, 3)},
}
DISTURBANCES = ("reconcile", "crash", "kubelet", "lose a child", "lose the status")


async def reconcile(world: World, crash_after: int | None = None) -> None:
    world.cluster.crash_after = crash_after
    try:
        await world.reconcile()
    except Crash:
        pass
    finally:
        world.cluster.crash_after = None


async def settle(world: World) -> None:
    """Until nothing is written any more; more than 20 rounds would be a loop."""
    for _ in range(20):
        before = world.cluster.writes
        step_kubelet(world.cluster)
        await world.reconcile()
        if world.cluster.writes == before:
            return
    pytest.fail("the operator writes for ever")


def picture(world: World) -> dict[str, Any]:
    """All objects without what counts time and writes."""
    found = {}
    for (kind, namespace, name), obj in world.cluster.objects.items():
        if kind == "Pod":
            found[f"{kind}/{name}"] = sorted(obj["metadata"]["labels"].items())
            continue
        status = obj.get("status") or {}
        kept = {k: v for k, v in status.items() if k in ("phase", "progress", "lastCheckpoint", "attempt", "reason")}
        kept["conditions"] = [(c["type"], c["status"], c["reason"]) for c in status.get("conditions", [])]
        labels = obj["metadata"].get("labels")
        found[f"{kind}/{namespace}/{name}"] = json.loads(json.dumps([labels, obj.get("spec"), obj.get("data"), kept]))
    found["S3"] = sorted(world.artifacts.folders)
    return found


def new_world() -> World:
    world = World(FakeCluster())
    world.poller.answer = training()
    return world


async def settled() -> World:
    """An operator that nothing has disturbed."""
    world = new_world()
    for put in INPUTS.values():
        put(world)
    await settle(world)
    return world


EXPECTED = picture(asyncio.run(settled()))


def test_the_undisturbed_run_reaches_the_expected_state() -> None:
    assert EXPECTED["RLRun/team/reverse"][3]["phase"] == "Running"
    assert EXPECTED["S3"] == [
        f"{ROOT}/adapters/step-000003",
        f"{ROOT}/checkpoints/step-000002",
        f"{ROOT}/checkpoints/step-000003",
    ]
    assert sum(key.startswith("ReplicaSet/") for key in EXPECTED) == 3
    assert sum(key.startswith("RLCheckpoint/") for key in EXPECTED) == 2


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    order=st.permutations(sorted(INPUTS)),
    noise=st.lists(
        st.tuples(st.sampled_from(DISTURBANCES), st.integers(0, 24)), min_size=len(INPUTS), max_size=3 * len(INPUTS)
    ),
)
def test_any_order_and_any_crash_converge(order: list[str], noise: list[tuple[str, int]]) -> None:
    async def story() -> dict[str, Any]:
        world = new_world()
        inputs = list(order)
        for i, (what, number) in enumerate(noise):
            if inputs and i % 2 == 0:
                INPUTS[inputs.pop(0)](world)
            await disturb(world, what, number)
        for name in inputs:
            INPUTS[name](world)
        await settle(world)
        return picture(world)

    found = asyncio.run(story())
    # Retention may have been quicker than a late arrival of an older step: that one is then deleted as well.
    assert found == EXPECTED


async def disturb(world: World, what: str, number: int) -> None:
    if what == "reconcile":
        await reconcile(world)
    elif what == "crash":
        await reconcile(world, crash_after=number)
    elif what == "kubelet":
        step_kubelet(world.cluster)
    elif what == "lose a child":
        own = world.cluster.all("ReplicaSet", "Job", "Service", "ConfigMap", "NetworkPolicy", "ServiceAccount")
        if own:
            world.cluster.request_deletion(own[number % len(own)])
    elif what == "lose the status":
        run = world.cluster.find("RLRun", "reverse")
        if run:
            world.cluster.put({**run, "status": {}})


@pytest.mark.parametrize("crash_at", range(26))
async def test_crash_at_every_single_write_of_a_start(crash_at: int) -> None:
    world = new_world()
    for put in INPUTS.values():
        put(world)
    await reconcile(world, crash_after=crash_at)
    await settle(world)
    assert picture(world) == EXPECTED


@pytest.mark.parametrize("crash_at", range(12))
async def test_crash_at_every_write_of_the_end(crash_at: int) -> None:
    world = await settled()
    last = RunStatus(phase=RunPhase.completed, step=10, max_steps=10)
    end_orchestrator(world.cluster, 0, last.model_dump_json(by_alias=True))
    for kind in ("checkpoint", "adapter"):
        upload(kind, 10)(world)
    await reconcile(world, crash_after=crash_at)
    assert await world.phase(5) == "Completed"
    assert world.cluster.all("ReplicaSet") == []
    assert [o["spec"]["step"] for o in world.cluster.all("RLCheckpoint")] == [3, 10]
    assert [o["spec"]["step"] for o in world.cluster.all("RLAdapter")] == [10]
    assert {o["status"]["phase"] for o in world.cluster.all("RLCheckpoint", "RLAdapter")} == {"Ready"}
    assert await world.written(2) == 0


@pytest.mark.parametrize("crash_at", range(11))
@pytest.mark.parametrize("end", ["orchestrator", "stop", "suspend"])
async def test_crash_at_every_write_of_the_clean_up(end: str, crash_at: int) -> None:
    world = await settled()
    if end == "orchestrator":
        end_orchestrator(world.cluster, 0, "")
    else:
        world.change_spec(**{end: True})
    await world.reconcile()
    assert world.cluster.all("Service"), "they are deleted when the pods have ended"
    await reconcile(world, crash_after=crash_at)
    await world.reconcile(2)
    kept = world.cluster.all("Service", "NetworkPolicy", "ConfigMap", "ServiceAccount", "ReplicaSet")
    assert [o["metadata"]["name"] for o in kept] == []
    assert world.cluster.find("Secret", "reverse-rlrun-token") is None
    assert await world.written(2) == 0
