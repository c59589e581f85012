"""A run whose pods Kueue holds back is Queued until they are admitted."""

from collections.abc import Callable
from typing import Any

import pytest
from rlrun.protocol.orchestrator import RunPhase, RunStatus

from tests.support.clocks import START
from tests.support.fake_kubelet import step_kubelet
from tests.support.operator_world import World

Obj = dict[str, Any]
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
GATE = "kueue.x-k8s.io/admission"


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(queueName="team-a")


def gate(world: World, name: str, gate_name: str = GATE) -> None:
    """The pod waits for admission, as Kueue holds back pods of Deployments."""
    pod: Any = world.cluster.find("Pod", name)
    pod["metadata"]["labels"][QUEUE_LABEL] = "team-a"
    pod["spec"]["schedulingGates"] = [{"name": gate_name}]
    pod["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}],
    }
    world.cluster.put(pod)


def admit(world: World, name: str) -> None:
    del world.cluster.objects[("Pod", "team", name)]
    step_kubelet(world.cluster)


def suspend_job(world: World, suspended: bool) -> None:
    """Kueue suspends Jobs until they are admitted; a suspended Job has no pods."""
    job: Any = world.cluster.find("Job", "reverse-orchestrator-a1")
    job["spec"]["suspend"] = suspended
    world.cluster.put(job)
    if suspended:
        world.cluster.objects.pop(("Pod", "team", "reverse-orchestrator-a1-0"), None)


@pytest.mark.proves("queueName")
async def test_a_run_with_a_gated_pod_is_queued_until_the_pod_is_admitted(world: World) -> None:
    await world.start()
    gate(world, "reverse-trainer-0")
    await world.reconcile()
    assert (world.status["phase"], world.status["reason"]) == ("Queued", "WaitingForQuota")
    assert "LocalQueue team-a" in world.status["message"]
    assert "kubectl get workloads -n team" in world.status["message"]
    assert world.condition("TrainerReady")["reason"] == "WaitingForQuota"
    assert world.condition("InferenceReady")["status"] == "True"
    admit(world, "reverse-trainer-0")
    await world.reconcile()
    assert world.status["phase"] == "Pending"
    assert "reason" not in world.status


@pytest.mark.proves("queueName")
async def test_a_run_with_a_suspended_job_is_queued(world: World) -> None:
    await world.start()
    suspend_job(world, suspended=True)
    await world.reconcile()
    assert world.status["phase"] == "Queued"
    assert world.condition("OrchestratorReady")["reason"] == "WaitingForQuota"
    suspend_job(world, suspended=False)
    step_kubelet(world.cluster)
    await world.reconcile()
    assert world.status["phase"] == "Pending"


async def test_a_gate_that_is_not_kueues_is_no_queue(world: World) -> None:
    await world.start()
    gate(world, "reverse-trainer-0", "example.com/maintenance")
    await world.reconcile()
    assert (world.status["phase"], world.status["reason"]) == ("Pending", "Starting")


async def test_a_suspended_job_without_a_queue_is_no_queue(make_world: Callable[..., World]) -> None:
    world = make_world()
    await world.start()
    suspend_job(world, suspended=True)
    await world.reconcile()
    assert world.status["phase"] == "Pending"


async def test_waiting_for_quota_takes_precedence_over_waiting_for_the_trainer(world: World) -> None:
    await world.start()
    gate(world, "reverse-trainer-0")
    waiting = {"reason": "WaitingForTrainer", "message": "the trainer does not answer"}
    world.poller.answer = RunStatus.model_validate({"phase": "Starting", "maxSteps": 10, "waitingFor": waiting})
    await world.reconcile()
    assert (world.status["phase"], world.status["reason"]) == ("Queued", "WaitingForQuota")


async def test_a_running_run_stays_running_and_says_what_it_waits_for(world: World) -> None:
    await world.start()
    world.poller.answer = RunStatus(phase=RunPhase.running, step=3, max_steps=10, started_at=START)
    await world.reconcile()
    gate(world, "reverse-trainer-0")
    await world.reconcile()
    assert (world.status["phase"], world.status["reason"]) == ("Running", "WaitingForQuota")


@pytest.mark.proves("startDeadlineSeconds")
async def test_time_in_the_queue_counts_toward_the_start_deadline(make_world: Callable[..., World]) -> None:
    world = make_world(queueName="team-a", startDeadlineSeconds=600)
    await world.start()
    gate(world, "reverse-trainer-0")
    await world.reconcile()
    world.clock.advance(600)
    await world.reconcile()
    assert world.status["phase"] == "Failed"
    assert world.condition("Failed")["reason"] == "WaitingForQuota"
    assert "LocalQueue team-a" in world.condition("Failed")["message"]


async def test_the_event_of_a_queued_run_is_no_warning(world: World) -> None:
    await world.start()
    world.cluster.events.clear()
    gate(world, "reverse-trainer-0")
    await world.reconcile()
    assert [(e["reason"], e["type"]) for e in world.cluster.events] == [("Queued", "Normal")]
