"""Kept answers compared with lists of a real API server."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from kubernetes import client
from rlrun.constants import RUN_LABEL
from rlrun.kube import requests
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.async_transport import AsyncApiTransport
from rlrun.kube.connection.api_configuration import load_configuration
from rlrun.kube.kinds import CONFIG_MAP
from rlrun_operator.cache.cached_reader import CachedReader
from rlrun_operator.cache.confirmation import ANSWERS_PER_PAGE, ROUND_SECONDS, confirm_answers
from rlrun_operator.cache.object_cache import ObjectCache

from local_cluster.control_plane.without_nodes import ControlPlane

RUNS = [f"run-{number:02}" for number in range(2 * ANSWERS_PER_PAGE)]
PAGE_OBJECTS = 12
"""Two pages have one ConfigMap of each run."""


@pytest.fixture
async def cluster(control_plane: ControlPlane) -> AsyncIterator[AsyncKubeClient]:
    found = AsyncKubeClient(AsyncApiTransport(await load_configuration(str(control_plane.kubeconfig))))
    yield found
    await found.close()


async def test_only_answers_that_a_list_shows_to_be_wrong_are_read_again(
    cluster: AsyncKubeClient, api: client.ApiClient, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "PAGE_SIZE", PAGE_OBJECTS)
    core, now = client.CoreV1Api(api), 0.0
    for run in RUNS:
        metadata = {"name": run, "labels": {RUN_LABEL: run}}
        core.create_namespaced_config_map(namespace, {"metadata": metadata, "data": {"value": "first"}})
    core.create_namespaced_config_map(namespace, {"metadata": {"name": "of-no-run"}})
    cache = ObjectCache(lambda: now)
    cache.watch_opened(CONFIG_MAP, namespace, ())

    async def look() -> dict[str, list[str]]:
        """Return the names that looks find for the runs whose answers are not kept."""
        found = {}
        for run in RUNS:
            reader = CachedReader(cluster, cache, (namespace, run))
            names = [obj["metadata"]["name"] for obj in await reader.list(CONFIG_MAP, namespace, {RUN_LABEL: run})]
            if not reader.has_kept_answers:
                found[run] = names
        return found

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now > 4 * ROUND_SECONDS:
            raise asyncio.CancelledError
        read.append(await look())

    assert len(await look()) == len(RUNS)
    # Nothing tells the cache of these.
    core.delete_namespaced_config_map("run-03", namespace)
    core.patch_namespaced_config_map("run-05", namespace, {"data": {"value": "second"}})
    core.create_namespaced_config_map(namespace, {"metadata": {"name": "new", "labels": {RUN_LABEL: "run-07"}}})
    read: list[dict[str, list[str]]] = []
    with pytest.raises(asyncio.CancelledError):
        await confirm_answers(cluster, cache, [namespace], [CONFIG_MAP], sleep)
    assert read == [{}, {"run-03": [], "run-05": ["run-05"], "run-07": ["new", "run-07"]}, {}, {}]
