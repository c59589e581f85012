"""Immediate replacement of an orchestrator that ended, without the wait of its Job."""

import copy
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from rlrun_operator.planning.plan.observation import RunKey

from tests.support.clocks import START
from tests.support.cluster_objects import NODE_FULL, terminated
from tests.support.fake_cluster import Crash
from tests.support.fake_kubelet import step_kubelet
from tests.support.operator_world import World
from tests.unit.rlrun_operator.planning.policies.running.conftest import orchestrator_of

Obj = dict[str, Any]

JOB = "reverse-orchestrator-a1"


def job_of(world: World) -> Obj:
    found = world.cluster.held("Job", JOB)
    return found


def end(pod: Obj, at: str, code: int = 1) -> None:
    pod["status"]["phase"] = "Failed"
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    pod["status"]["containerStatuses"][0]["state"] = terminated(code, finished=at)


def preempt(pod: Obj) -> None:
    end(pod, "2026-01-01T00:00:10Z", 137)
    pod["status"]["reason"] = "Preempting"


async def is_replaced(world: World) -> bool:
    """Two reconciles: the first may delete the Job, the second creates it again."""
    before = job_of(world)["metadata"]["uid"]
    await world.reconcile(2)
    return bool(job_of(world)["metadata"]["uid"] != before)


async def test_a_deleted_pod_gets_a_new_job(running: World) -> None:
    running.cluster.request_deletion(orchestrator_of(running))
    assert await is_replaced(running)
    step_kubelet(running.cluster)
    await running.reconcile(2)
    assert (running.status["restarts"], running.status["attempt"]) == (1, 1)
    assert "OrchestratorReplaced" in [event["reason"] for event in running.cluster.events]


async def test_a_pod_that_terminates_is_waited_for(running: World) -> None:
    pod = orchestrator_of(running)
    pod["metadata"]["finalizers"] = ["test"]
    running.cluster.request_deletion(pod)
    assert not await is_replaced(running)
    pod["metadata"]["finalizers"] = []
    running.cluster.request_deletion(pod)
    assert await is_replaced(running)


@pytest.mark.parametrize(("ended", "replaced"), [("2026-01-01T00:01:00Z", True), ("2026-01-01T00:00:59Z", False)])
async def test_a_crash_is_replaced_at_once_only_after_a_stable_time(running: World, ended: str, replaced: bool) -> None:
    running.change_spec(maxRestarts=5)
    end(orchestrator_of(running), ended)
    assert await is_replaced(running) is replaced
    assert next(c for c in running.status["components"] if c["name"] == "orchestrator")["crashes"] == 1
    assert running.status["restarts"] == 1


async def test_an_preempted_pod_is_replaced_once_within_the_stable_time(running: World) -> None:
    """Preemptions are no crashes, so `maxRestarts` does not end a loop of them."""
    preempt(orchestrator_of(running))
    assert await is_replaced(running)
    running.clock.advance(59)
    step_kubelet(running.cluster)
    preempt(orchestrator_of(running))
    assert not await is_replaced(running)
    running.clock.advance(1)
    assert await is_replaced(running)


async def test_a_pod_that_its_node_evicted_is_counted_by_its_job(running: World) -> None:
    preempt(orchestrator_of(running))
    orchestrator_of(running)["status"] |= {"reason": "Evicted", "message": NODE_FULL}
    assert not await is_replaced(running)
    assert running.condition("OrchestratorReady")["reason"] == "PodEvicted"


@pytest.mark.parametrize("skew", [-600, -90, 90, 600])
async def test_a_job_is_replaced_at_the_same_looks_with_any_clock_of_the_cluster(running: World, skew: int) -> None:
    def cluster_time() -> datetime:
        return running.clock() + timedelta(seconds=skew)

    job = job_of(running)
    running.cluster.time = cluster_time
    job["metadata"]["creationTimestamp"] = (START + timedelta(seconds=skew)).isoformat()
    running.cluster.request_deletion(orchestrator_of(running))
    assert await is_replaced(running)
    for _ in range(14):
        running.clock.advance(4)
        assert not await is_replaced(running), "a Job that has just been created"
    running.clock.advance(4)
    assert await is_replaced(running)


async def test_the_pod_of_an_earlier_job_is_not_taken_for_that_of_the_new_one(running: World) -> None:
    """A finalizer of somebody else keeps the preempted pod after its Job was deleted."""
    first = orchestrator_of(running)
    first["metadata"]["finalizers"] = ["test"]
    preempt(first)
    assert await is_replaced(running)
    running.clock.advance(300)
    second = other_pod(running)
    second["status"]["reason"] = ""
    running.cluster.put(second)
    assert not await is_replaced(running), "the second pod crashed soon after its start"


def other_pod(world: World, **metadata: Any) -> Obj:
    """Another running pod like the orchestrator's, a minute younger."""
    first = copy.deepcopy(orchestrator_of(world))
    first["metadata"] |= {"name": "second", "uid": "second", "creationTimestamp": "2026-01-01T00:01:00Z", **metadata}
    return first


async def test_a_job_is_kept_while_an_older_orchestrator_runs(running: World) -> None:
    evicted = other_pod(running)
    preempt(evicted)
    running.cluster.put(evicted)
    assert not await is_replaced(running)


@pytest.mark.parametrize(
    ("first", "second", "replaced"),
    [
        ("2026-01-01T00:00:05Z", "2026-01-01T00:04:00Z", True),
        ("2026-01-01T00:04:00Z", "2026-01-01T00:00:05Z", False),
    ],
)
async def test_the_newest_of_two_ended_pods_decides(running: World, first: str, second: str, replaced: bool) -> None:
    running.change_spec(maxRestarts=5)
    pod = other_pod(running)
    end(orchestrator_of(running), first)
    end(pod, second)
    running.cluster.put(pod)
    assert await is_replaced(running) is replaced


async def test_a_job_is_kept_before_the_first_step_of_the_attempt(world: World) -> None:
    await world.start()
    world.clock.advance(300)
    world.cluster.request_deletion(orchestrator_of(world))
    assert not await is_replaced(world)


async def test_the_log_of_an_preempted_pod_is_copied_before_its_job_is_deleted(running: World) -> None:
    pod = orchestrator_of(running)
    running.cluster.logs[f"{pod['metadata']['name']}/orchestrator"] = b"last words\n"
    preempt(pod)
    await running.reconcile()
    assert running.cluster.find("Job", JOB) is None
    assert any(b"last words" in text for text in running.artifacts.files.values())


async def test_an_end_is_counted_before_the_job_is_deleted(running: World) -> None:
    running.cluster.request_deletion(orchestrator_of(running))
    running.cluster.crash_after = 1
    with pytest.raises(Crash):
        await running.reconcile()
    assert running.status["restarts"] == 1
    assert running.cluster.find("Job", JOB) is not None


async def test_a_job_that_changed_meanwhile_is_kept(running: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Job controller writes the Job's status when it makes a pod; copying logs may take long enough for that."""
    running.cluster.request_deletion(orchestrator_of(running))
    first = job_of(running)["metadata"]["uid"]
    reconciler = running.reconciler()
    collect = reconciler._applier.logs.collect

    async def slowly(*args: Any) -> None:
        await collect(*args)
        running.cluster.put({**job_of(running), "status": {"active": 1}})

    monkeypatch.setattr(reconciler._applier.logs, "collect", slowly)
    await reconciler.reconcile(RunKey("team", "reverse"))
    assert job_of(running)["metadata"]["uid"] == first


def young(world: World) -> None:
    created = (world.clock() - timedelta(seconds=59)).isoformat().replace("+00:00", "Z")
    job_of(world)["metadata"]["creationTimestamp"] = created


def suspended(world: World) -> None:
    job_of(world)["spec"]["suspend"] = True


def leaving(world: World) -> None:
    job_of(world)["metadata"]["deletionTimestamp"] = "2026-01-01T00:04:00Z"


def upgraded(world: World) -> None:
    images = world.settings.images
    newer = images.model_copy(update={"orchestrator": images.orchestrator.model_copy(update={"tag": "newer"})})
    world.settings = world.settings.model_copy(update={"images": newer})


def reporting(status: Obj) -> Callable[[World], None]:
    def change(world: World) -> None:
        job_of(world)["status"] = status

    return change


@pytest.mark.parametrize(
    "state",
    [
        young,
        suspended,
        leaving,
        upgraded,
        reporting({"active": 1}),
        reporting({"succeeded": 1}),
        reporting({"uncountedTerminatedPods": {"succeeded": ["uid"]}}),
        *(
            reporting({"conditions": [{"type": kind, "status": "True"}]})
            for kind in ("SuccessCriteriaMet", "FailureTarget")
        ),
    ],
)
async def test_a_job_that_does_more_than_wait_is_kept(running: World, state: Callable[[World], None]) -> None:
    running.cluster.request_deletion(orchestrator_of(running))
    state(running)
    assert not await is_replaced(running)


async def test_a_job_is_not_created_beside_a_pod_of_the_deleted_one(running: World) -> None:
    pod = orchestrator_of(running)
    pod["metadata"]["finalizers"] = ["test"]
    running.cluster.request_deletion(job_of(running))
    await running.reconcile(2)
    assert running.cluster.find("Job", JOB) is None
    pod["metadata"]["finalizers"] = []
    running.cluster.request_deletion(pod)
    await running.reconcile()
    assert running.cluster.find("Job", JOB) is not None


async def test_a_job_is_created_beside_an_ended_pod_of_the_deleted_one(running: World) -> None:
    pod = orchestrator_of(running)
    pod["metadata"]["finalizers"] = ["test"]
    end(pod, "2026-01-01T00:04:00Z")
    running.change_spec(maxRestarts=5)
    running.cluster.request_deletion(job_of(running))
    await running.reconcile(2)
    assert running.cluster.find("Job", JOB) is not None
