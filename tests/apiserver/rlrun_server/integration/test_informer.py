"""An informer follows a real API server, through gaps and silence."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kubernetes import client
from rlrun.kube import informer as informer_module
from rlrun.kube import requests
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.async_transport import AsyncApiTransport
from rlrun.kube.connection.api_configuration import load_configuration
from rlrun.kube.informer import CachedObject, Informer, ObjectChange, version_number
from rlrun.kube.kinds import CONFIG_MAP
from rlrun.kube.objects import Obj, label

from local_cluster.control_plane.without_nodes import ControlPlane
from tests.support.api_proxy import Answer, Proxy, passes, running
from tests.support.waiting import until

RUN = "rlrun.dev/run"


def convert(obj: Obj) -> CachedObject:
    metadata, data = obj["metadata"], json.dumps(obj).encode()
    version, labels = version_number(metadata["resourceVersion"]), ((RUN, label(obj, RUN)),)
    return CachedObject(metadata["namespace"], metadata["name"], metadata["uid"], version, data, len(data), labels)


def config_map(name: str, value: str = "first", **labels: str) -> Obj:
    metadata = {"name": name, "labels": {RUN: "first", "followed": "yes", **labels}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": value}}


class Followed:
    """The ConfigMaps of a namespace with a label."""

    def __init__(self, kube: AsyncKubeClient, core: client.CoreV1Api, namespace: str) -> None:
        self.kube, self.core, self.namespace = kube, core, namespace
        self.told: list[tuple[str, bool, bool]] = []
        labels = {"followed": "yes"}
        self.informer = Informer(kube, CONFIG_MAP, convert, namespace=namespace, labels=labels, index=(RUN,))
        self.informer.listeners.append(self._note)

    def _note(self, change: ObjectChange[CachedObject]) -> None:
        self.told.append((change.cached.name, change.is_deleted, change.is_own))

    def create(self, *names: str) -> None:
        for name in names:
            self.core.create_namespaced_config_map(self.namespace, config_map(name))

    def patch(self, name: str, body: Obj) -> None:
        self.core.patch_namespaced_config_map(name, self.namespace, body)

    def delete(self, name: str) -> None:
        self.core.delete_namespaced_config_map(name, self.namespace)

    @property
    def stored(self) -> dict[str, str]:
        return {cached.name: cached.read()["data"]["value"] for cached in self.informer.all()}

    async def until_stored(self, **values: str) -> None:
        await until(lambda: self.stored == values)


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[Proxy]:
    with running(control_plane.kubeconfig) as proxy:
        yield proxy


@asynccontextmanager
async def following(proxy: Proxy, api: client.ApiClient, namespace: str, folder: Path) -> AsyncIterator[Followed]:
    configuration = await load_configuration(str(proxy.kubeconfig(folder / "kubeconfig")))
    kube = AsyncKubeClient(AsyncApiTransport(configuration))
    followed = Followed(kube, client.CoreV1Api(api), namespace)
    followed.create("a", "b", "c")
    followed.core.create_namespaced_config_map(namespace, config_map("other", followed="no"))
    task = asyncio.create_task(followed.informer.follow())
    async with asyncio.timeout(60):
        await followed.informer.until_synced()
    yield followed
    task.cancel()
    await asyncio.wait([task])
    await kube.close()


async def test_objects_are_listed_by_pages_and_followed(
    proxy: Proxy, api: client.ApiClient, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "PAGE_SIZE", 2)
    async with following(proxy, api, namespace, tmp_path) as followed:
        assert followed.stored == dict.fromkeys("abc", "first")
        assert [cached.name for cached in followed.informer.find_labelled(namespace, RUN, "first")] == ["a", "b", "c"]
        followed.patch("b", {"data": {"value": "second"}})
        followed.delete("c")
        await followed.until_stored(a="first", b="second")
        # An object that leaves the selection comes back with the same uid.
        followed.patch("a", {"metadata": {"labels": {"followed": "no"}}})
        await followed.until_stored(b="second")
        followed.patch("a", {"metadata": {"labels": {"followed": "yes", RUN: "second"}}})
        await followed.until_stored(a="first", b="second")
        assert [cached.name for cached in followed.informer.find_labelled(namespace, RUN, "second")] == ["a"]
        assert ("c", True, False) in followed.told
        assert len([request for request in proxy.requests if not request.watch]) == 2, "two pages"


@pytest.mark.parametrize("how", ["gone", "cut"])
async def test_a_gap_is_closed_by_one_list(
    proxy: Proxy, api: client.ApiClient, namespace: str, tmp_path: Path, how: str
) -> None:
    async with following(proxy, api, namespace, tmp_path) as followed:
        await until(lambda: bool(proxy._watches))
        # No watch opens until the changes are made.
        proxy.decide = lambda request: Answer(503) if request.watch else passes(request)
        proxy.end_watches(how)
        await until(lambda: not proxy._watches)
        followed.delete("a")
        followed.delete("b")
        followed.create("b", "d")
        followed.patch("c", {"data": {"value": "second"}})
        proxy.decide = passes
        await followed.until_stored(b="first", c="second", d="first")
        assert sorted({told for told in followed.told if told[0] != "b"}) == [
            ("a", True, False),
            ("c", False, False),
            ("d", False, False),
        ]
        assert [told for told in followed.told if told[0] == "b"] == [("b", True, False), ("b", False, False)]


async def test_a_connection_that_is_silent_is_given_up(
    proxy: Proxy, api: client.ApiClient, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer_module, "SILENCE_SECONDS", 2.0)
    # Whoever opens a watch is never answered.
    proxy.decide = lambda request: Answer(silent=True) if request.watch else passes(request)
    async with following(proxy, api, namespace, tmp_path) as followed:
        await until(lambda: any(request.watch for request in proxy.requests))
        followed.patch("a", {"data": {"value": "second"}})
        await followed.until_stored(a="second", b="first", c="first")
        proxy.decide = passes


async def test_own_writes_are_stored_at_once_and_told_once(
    proxy: Proxy, api: client.ApiClient, namespace: str, tmp_path: Path
) -> None:
    async with following(proxy, api, namespace, tmp_path) as followed:
        for number in range(20):
            own = config_map("a", str(number))
            own["metadata"]["namespace"] = namespace
            with followed.informer.writing(namespace, "a") as store_answer:
                store_answer(await followed.kube.apply(own))
            assert followed.stored["a"] == str(number)
        followed.patch("b", {"data": {"value": "second"}})
        await followed.until_stored(a="19", b="second", c="first")
        assert [told for told in followed.told if not told[2]] == [("b", False, False)]
