"""Requests of a look, counted: what docs/design/035 promises of the API server and S3."""

from collections import Counter

import pytest
from rlrun.kube.objects import label
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun_operator.cache.object_cache import ObjectCache
from rlrun_operator.planning.plan.observation import RunKey

from tests.support.clocks import START
from tests.support.fake_kubelet import end_orchestrator, step_kubelet
from tests.support.operator_world import World

KEY = RunKey("team", "reverse")
SHARED = "get Secret rlrun-system/s3"
"""Read every ten seconds for all runs together."""
BYTES_PER_RUN = 25_000


def requests(world: World) -> list[str]:
    """The requests since the last call, without the one that all runs share."""
    found = [call for call in world.cluster.calls if call != SHARED]
    world.cluster.requests.clear()
    return found


def report(step: int) -> RunStatus:
    return RunStatus(phase=RunPhase.running, step=step, max_steps=10, started_at=START, version=str(step))


@pytest.fixture
async def training(world: World) -> World:
    """A run that trains, looked at by an operator that keeps what it reads."""
    world.cache = ObjectCache(lambda: 0.0)
    world.poller.answer, world.poller.watches = report(3), True
    await world.start()
    await world.reconcile(3)
    requests(world)
    world.artifacts.lists = 0
    return world


async def test_the_first_look_makes_22_requests(world: World) -> None:
    world.cache = ObjectCache(lambda: 0.0)
    await world.reconcile()
    verbs = Counter(request.verb.name for request in world.cluster.requests)
    # The design's 15 were 2 statuses, 11 objects, an Event and a Secret, with fewer objects for each run: today's 4
    # Services and 4 NetworkPolicies are 3 and 2 there, and the ServiceAccount belongs to the namespace.
    assert verbs == {"APPLY": 15 + 1, "CREATE": 1, "GET": 3, "LIST": 2}
    assert world.artifacts.lists == 0
    assert sum(1 for obj in world.cluster.objects.values() if label(obj, "rlrun.dev/run") == "reverse") == 15


async def test_a_look_with_nothing_new_makes_none(training: World) -> None:
    for _ in range(5):
        training.clock.advance(60)
        await training.reconcile()
    assert requests(training) == []
    assert training.artifacts.lists == 0


async def test_a_look_at_a_run_that_waits_for_its_pods_makes_none(world: World) -> None:
    world.cache = ObjectCache(lambda: 0.0)
    await world.reconcile(4)
    requests(world)
    world.artifacts.lists = 0
    for _ in range(5):
        world.clock.advance(10)
        await world.reconcile()
    assert requests(world) == []
    assert world.artifacts.lists == 0


async def test_progress_makes_one(training: World) -> None:
    for step in (4, 5, 6):
        training.poller.answer = report(step)
        await training.reconcile()
        assert requests(training) == ["apply the status of RLRun team/reverse"]
    assert training.artifacts.lists == 0


async def test_a_started_pod_makes_six_at_most(world: World) -> None:
    world.cache = ObjectCache(lambda: 0.0)
    await world.reconcile(2)
    requests(world)
    step_kubelet(world.cluster)
    world.poller.answer, world.poller.watches = report(0), True
    await world.reconcile()
    found = requests(world)
    # Pods, the Secret that they may lack, the status, and the Event of a new phase.
    assert len(found) <= 6, found


async def test_a_finished_run_makes_none_and_is_not_looked_at_again(training: World) -> None:
    end_orchestrator(training.cluster, 0, '{"phase": "Completed", "step": 10}')
    training.poller.answer = None
    for _ in range(12):
        training.clock.advance(30)
        again = await training.reconcile()
        if not training.cluster.all("ReplicaSet"):
            # Their pods go with them; the ended one of the orchestrator stays with its Job.
            for pod in training.cluster.all("Pod"):
                if label(pod, "rlrun.dev/role") != "orchestrator":
                    training.cluster.objects.pop(("Pod", "team", pod["metadata"]["name"]), None)
    assert training.status["phase"] == "Completed"
    assert again is None
    assert training.reconciler().is_settled(KEY, training.run["metadata"]["resourceVersion"])
    assert training.cache is not None
    assert training.cache.size() == 0


async def test_a_run_takes_at_most_25_kb_of_memory(training: World) -> None:
    assert training.cache is not None
    assert 1_000 < training.cache.size() <= BYTES_PER_RUN
