"""The OpenAI-compatible API at a real API server, with the chart's roles: the server's own and those of users."""

import asyncio
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from kubernetes import client
from kubernetes.aio import client as aio_client
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.async_transport import AsyncApiTransport
from rlrun.kube.connection.api_configuration import without_credentials
from rlrun.storage.layout import S3Uri
from rlrun_server.authentication.identification import Identification
from rlrun_server.authentication.users import Users
from rlrun_server.inference.inference_app import inference_app
from rlrun_server.inference.pool_client import PoolClient
from rlrun_server.rest.base.stored_files import PlatformStorage
from rlrun_server.rest.context.services import make_services

from tests.apiserver.rlrun_server.test_rest_api import bearer, own_configuration, roles, until  # noqa: F401
from tests.apiserver.rlrun_server.test_users import Accounts
from tests.support.completion_engine import PLATFORM_KEY, CompletionEngine
from tests.support.fake_s3 import InMemoryStore

GROUP, VERSION = "rlrun.dev", "v1alpha1"
BASE = "tests/tiny"


@pytest.fixture
async def engine(namespace: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CompletionEngine]:
    """The engine of the namespace's pool."""
    async with CompletionEngine(namespace, BASE).serving(monkeypatch) as found:
        yield found


@pytest.fixture
async def inference(
    own_configuration: aio_client.Configuration,  # noqa: F811
    engine: CompletionEngine,
) -> AsyncIterator[httpx.AsyncClient]:
    """The API with what stands around it, as in the process."""
    cluster = AsyncKubeClient(AsyncApiTransport(own_configuration))
    callers = AsyncApiTransport(without_credentials(own_configuration))
    users = Users(cluster.create, time.monotonic)

    async def renew() -> None:
        pass

    storage = PlatformStorage(InMemoryStore("bucket"), renew, S3Uri("bucket", ""))
    identification = Identification(users, 1000.0, time.monotonic)
    services = make_services(cluster, callers, identification, users, storage, time.monotonic)
    pools = PoolClient(lambda: PLATFORM_KEY, lambda *_: engine.url)
    tasks = [asyncio.create_task(kind.follow()) for kind in services.objects.kinds]
    transport = httpx.ASGITransport(app=inference_app(services, pools))
    async with httpx.AsyncClient(transport=transport, base_url="http://server/v1", timeout=60) as found:
        yield found
    for task in tasks:
        task.cancel()
    services.close()
    await pools.close()
    await callers.close()
    await cluster.close()


def deploy(api: client.ApiClient, namespace: str, name: str) -> None:
    """Create a deployed adapter, as user and operator do it together."""
    objects = client.CustomObjectsApi(api)
    spec = {"runName": "run", "runUid": "uid", "model": BASE, "step": 1, "uri": "s3://bucket/x", "deployed": True}
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "RLAdapter", "metadata": {"name": name}, "spec": spec}
    objects.create_namespaced_custom_object(GROUP, VERSION, namespace, "rladapters", body)
    status = {"status": {"phase": "Ready", "deploymentState": "Deployed"}}
    objects.patch_namespaced_custom_object_status(GROUP, VERSION, namespace, "rladapters", name, status)


async def test_rights_of_users(
    inference: httpx.AsyncClient,
    engine: CompletionEngine,
    api: client.ApiClient,
    namespace: str,
    roles: dict[str, str],  # noqa: F811
) -> None:
    accounts = Accounts(api)
    editor = bearer(accounts.make(namespace, "ann", roles["editor"]))
    viewer = bearer(accounts.make(namespace, "vic", roles["viewer"]))
    stranger = bearer(accounts.make(namespace, "eve"))
    deploy(api, namespace, "one")
    names = [f"{BASE}:one", f"{namespace}/one", f"{namespace}/{BASE}:one"]

    async def listed() -> bool:
        answer = await inference.get("/models", headers=editor)
        return [model["id"] for model in answer.json().get("data") or ()] == [BASE, f"{BASE}:one"]

    await until(listed)
    for name in names:
        body = {"model": name, "messages": [{"role": "user", "content": "a"}]}
        answer = await inference.post("/chat/completions", json=body, headers=editor)
        assert answer.status_code == 200, answer.text
        refused = await inference.post("/chat/completions", json=body, headers=viewer)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "access_forbidden")
        unknown = await inference.post("/chat/completions", json=body, headers=stranger)
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        anonymous = await inference.post("/chat/completions", json=body)
        assert anonymous.status_code == 401
    assert len(engine.requests) == len(names)
    for user in (viewer, stranger):
        assert (await inference.get("/models", headers=user)).json()["data"] == []
