import base64

import pytest
from rlrun_operator.config.settings import ApiKeySettings, SecretRef
from rlrun_operator.runtime.platform_key import KeyInvalid, ensure_api_keys, ensure_key

from tests.support.fake_cluster import FakeCluster


async def ensure(cluster: FakeCluster) -> bytes:
    return await ensure_key(cluster.kube, "rlrun-system", "rlrun-run-tokens")


async def test_the_key_is_made_once() -> None:
    cluster = FakeCluster()
    key = await ensure(cluster)
    assert len(base64.urlsafe_b64decode(key + b"=")) == 32
    assert key.decode().isascii(), "a program may read it as text"
    assert await ensure(cluster) == key
    assert await ensure(FakeCluster()) != key


API_KEYS = SecretRef(namespace="rlrun-system", name="rlrun-server-api-keys")


async def test_api_keys_stay_until_they_are_turned_off() -> None:
    cluster = FakeCluster()
    for _ in range(2):
        await ensure_api_keys(cluster.kube, ApiKeySettings(secret=API_KEYS))
        kept = cluster.held("Secret", API_KEYS.name, API_KEYS.namespace)
        cluster.put({**kept, "data": {"abc": "ZGlnZXN0"}})
    assert cluster.held("Secret", API_KEYS.name, API_KEYS.namespace)["data"] == {"abc": "ZGlnZXN0"}
    for _ in range(2):
        await ensure_api_keys(cluster.kube, ApiKeySettings(secret=API_KEYS, enabled=False))
        assert cluster.find("Secret", API_KEYS.name, API_KEYS.namespace) is None


@pytest.mark.parametrize("data", [{}, {"key": ""}, {"key": "!"}, {"key": base64.b64encode(b"short").decode()}])
async def test_an_unusable_key_is_not_replaced(data: dict[str, str]) -> None:
    cluster = FakeCluster()
    metadata = {"name": "rlrun-run-tokens", "namespace": "rlrun-system"}
    cluster.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
    with pytest.raises(KeyInvalid, match="rlrun-system/rlrun-run-tokens has no key"):
        await ensure(cluster)
    assert cluster.held("Secret", "rlrun-run-tokens", "rlrun-system")["data"] == data
