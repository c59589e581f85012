"""Pods that the API server refuses: named within seconds, and the run's other pods give their GPUs back."""

import pytest

from tests.support.cluster_objects import event_object, model_object, run_object, source_secret
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubelet import step_kubelet
from tests.support.operator_world import World

QUOTA = 'pods "{name}-x7k2p" is forbidden: exceeded quota: compute, requested: limits.memory=8Gi'
WEBHOOK = 'admission webhook "pods.example.com" denied the request: label team is missing'


async def refuse(role: str, words: str = QUOTA, *, nodes: int = 1) -> World:
    """A run of which the API server refuses the pods of one role, in the way of the controller of its workload."""
    gpus = {"gpus": 1 if nodes > 1 else 0}
    world = World(FakeCluster(run_object(), model_object(trainer={**gpus, "nodes": nodes}), source_secret()))
    await world.reconcile(2)
    step_kubelet(world.cluster)
    remove_pods(world, role, words)
    return world


def remove_pods(world: World, role: str, words: str = QUOTA) -> None:
    for pod in world.cluster.all("Pod"):
        if pod["metadata"]["labels"]["rlrun.dev/role"] == role:
            world.cluster.objects.pop(("Pod", "team", pod["metadata"]["name"]))
    for owner in world.cluster.all("ReplicaSet", "Job"):
        labels, name = owner["metadata"]["labels"], owner["metadata"]["name"]
        if labels.get("rlrun.dev/role") != role:
            continue
        message = words.replace("{name}", name)
        if owner["kind"] == "Job":
            world.cluster.put(event_object(owner["metadata"]["uid"], "FailedCreate", f"Error creating: {message}"))
        else:
            failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
            world.cluster.put({**owner, "status": {"conditions": [failure]}})


ROLES = [("orchestrator", 1), ("trainer", 2), ("trainer", 1), ("inference", 1), ("environment", 1)]
KIND = {"orchestrator": "Orchestrator", "trainer": "Trainer", "inference": "Inference", "environment": "Environments"}


@pytest.mark.parametrize(("role", "nodes"), ROLES)
@pytest.mark.parametrize(("words", "reason"), [(QUOTA, "QuotaExceeded"), (WEBHOOK, "ObjectRefused")])
async def test_refused_pods_of_each_workload_are_a_condition_within_seconds(
    role: str, nodes: int, words: str, reason: str
) -> None:
    world = await refuse(role, words, nodes=nodes)
    await world.reconcile(2, after=5)
    shown = world.condition(f"{KIND[role]}Ready")
    assert (shown["status"], shown["reason"], world.status["reason"]) == ("False", reason, reason)
    assert words.partition("}")[2].partition('"')[2] in shown["message"]
    written = await world.written(3, after=60)
    assert written == 0, "the same refusal is not written again"


@pytest.mark.parametrize(("role", "nodes"), ROLES)
async def test_an_attempt_with_refused_pods_gives_the_pods_of_other_roles_back(role: str, nodes: int) -> None:
    world = await refuse(role, nodes=nodes)
    for _ in range(9):
        await world.reconcile(after=20)
        if world.status["reason"] == "Restarting":
            break
    assert (world.status["reason"], world.status["runRestartsTowardMax"]) == ("Restarting", 0)
    assert "exceeded quota: compute" in world.status["message"]
    assert world.cluster.all("ReplicaSet", "Pod") == []


async def test_refusals_end_the_run_after_its_start_deadline_over_all_attempts() -> None:
    world = await refuse("inference")
    held = looks = 0
    while looks < 400:
        looks += 1
        if world.cluster.find("ReplicaSet", "reverse-inference") is not None:
            held += 1
            step_kubelet(world.cluster)
            remove_pods(world, "inference")
        await world.reconcile(after=20)
        if world.status["phase"] == "Failed":
            break
    assert (world.status["phase"], world.status["reason"]) == ("Failed", "QuotaExceeded")
    assert "startDeadlineSeconds" in world.status["message"]
    assert looks * 20 <= 3600 + 300 + 120, "the deadline, then at most one pause and the start after it"
    assert held < looks / 2, "most of the time, others have the GPUs"


async def test_refusals_that_end_are_forgotten() -> None:
    world = await refuse("inference")
    await world.reconcile(after=5)
    assert world.status["refusedSince"] is not None
    owner = world.cluster.held("ReplicaSet", "reverse-inference")
    world.cluster.put({**owner, "status": {}})
    step_kubelet(world.cluster)
    await world.reconcile(after=150)
    assert (world.status.get("refusedSince"), world.status["runRestarts"]) == (None, 0)
