"""Looks see the parts of objects that they use, wherever an object comes from, and its memory holds no others."""

import json
import time

import pytest
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.kinds import ALL, POD
from rlrun.kube.pods import container_image, is_stopped, memory_limit
from rlrun_operator.cache.cached_reader import CachedReader
from rlrun_operator.cache.object_cache import ObjectCache
from rlrun_operator.cache.object_parts import used_parts
from rlrun_operator.cache.recording_transport import RecordingTransport
from rlrun_operator.resources.demand import pod_requests

from tests.support.cache_feed import CacheFeed
from tests.support.operator_world import World

BYTES_PER_RUN = 10_000
KINDS = ("Pod", "ReplicaSet", "Job", "Service", "NetworkPolicy", "ConfigMap", "ServiceAccount")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_kept_answer_and_a_new_one_have_the_same_parts(world: World, kind: str) -> None:
    await world.start()
    cache = ObjectCache(time.monotonic)
    CacheFeed(world.cluster, cache)
    client = AsyncKubeClient(RecordingTransport(world.cluster, cache))
    world.cluster.requests.clear()
    answers = [
        await CachedReader(client, cache, ("team", "reverse")).list(ALL[kind], "team", {"rlrun.dev/run": "reverse"})
        for _ in range(2)
    ]
    assert len(world.cluster.requests) == 1
    assert answers[0] == answers[1]
    assert answers[0], kind
    for obj in answers[0]:
        held = world.cluster.objects[kind, "team", obj["metadata"]["name"]]
        assert obj["metadata"] == held["metadata"]
        assert obj.get("data") == held.get("data")


async def test_the_parts_of_pods_are_those_that_diagnoses_read(world: World) -> None:
    await world.start()
    for pod in world.cluster.all("Pod"):
        found = used_parts(POD, pod)
        for container in pod["spec"]["containers"]:
            name = container["name"]
            assert container_image(found, name) == container_image(pod, name)
            assert memory_limit(found, name) == memory_limit(pod, name)
        assert pod_requests(found["spec"]) == pod_requests(pod["spec"])
        assert is_stopped(found) == is_stopped(pod)
        assert found["status"] == pod["status"]
        text = json.dumps(found["spec"])
        assert '"env"' not in text
        assert '"volumes"' not in text


async def test_a_run_takes_little_memory(world: World) -> None:
    world.cache = ObjectCache(lambda: 0.0)
    await world.start()
    await world.reconcile(2)
    assert 1_000 < world.cache.size() <= BYTES_PER_RUN
