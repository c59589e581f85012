"""The OpenAI-compatible API on loopback, with an API server in memory."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from rlrun.kube.objects import Obj
from rlrun.service.listening import listen
from rlrun_server.http.serving import serving_on
from rlrun_server.inference.completions import Completions
from rlrun_server.inference.inference_app import inference_app
from rlrun_server.inference.pool_client import PoolClient

from tests.support.completion_engine import PLATFORM_KEY, CompletionEngine
from tests.support.rest_api import CREATED, RestApi, rest_api, uid_of

CHAT_RIGHT = "create rladapters/chat in {}"


def adapter(
    name: str, namespace: str = "team", model: str = "m", *, state: str = "Deployed", deployed: bool = True,
    number: int = 1, **status: Any,
) -> Obj:  # fmt: skip
    """Return an RLAdapter as the API server stores it."""
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": uid_of(number),
        "resourceVersion": str(number),
        "creationTimestamp": CREATED.format(number % 60),
    }
    spec = {"runName": "run", "runUid": "uid", "model": model, "step": number, "uri": "s3://b/k", "deployed": deployed}
    found = {"phase": "Ready", "deploymentState": state, **status}
    return {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLAdapter",
        "metadata": metadata,
        "spec": spec,
        "status": found,
    }


@dataclass
class InferenceApi:
    """A running API, and what stands around it."""

    rest: RestApi
    client: httpx.AsyncClient
    completions: Completions
    asked: list[tuple[str, str]]
    """Namespace and base model of each pool whose address was computed."""

    def add(self, *adapters: Obj) -> None:
        """Let the server know these adapters."""
        self.rest.add(*adapters)

    def user(self, name: str, *namespaces: str) -> dict[str, str]:
        """Return the headers of a user who may ask the models of these namespaces."""
        return self.rest.user(name, *(CHAT_RIGHT.format(namespace) for namespace in namespaces))


@asynccontextmanager
async def serving_inference_api(
    address: Callable[[str, str], str], platform_key: bytes = PLATFORM_KEY, *, names_tenants: bool = True
) -> AsyncIterator[InferenceApi]:
    """Serve the API while the context is open. `address`: of the pool of a namespace and a base model."""
    asked: list[tuple[str, str]] = []

    def address_of(namespace: str, model: str) -> str:
        asked.append((namespace, model))
        return address(namespace, model)

    rest = rest_api()
    pools = PoolClient(lambda: platform_key, address_of)
    app = inference_app(rest.services, pools, names_tenants=names_tenants)
    sockets = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/v1"
    async with (
        serving_on(app, sockets, drain_seconds=1.0),
        httpx.AsyncClient(base_url=url, timeout=20, trust_env=False, verify=False) as client,
    ):
        yield InferenceApi(rest, client, app.state.completions, asked)
    await pools.close()
    await rest.client.aclose()


@dataclass
class ThreadedApi:
    """An API in a thread, for synchronous clients."""

    url: str
    """Without `/v1`."""
    api: InferenceApi
    engine: CompletionEngine


@contextmanager
def threaded_inference_api(monkeypatch: Any, *adapters: Obj) -> Iterator[ThreadedApi]:
    """Serve the API with these adapters, and the engine of their pool, while the context is open."""
    loop, started = asyncio.new_event_loop(), threading.Event()
    found: list[ThreadedApi] = []
    stop = asyncio.Event()

    async def run() -> None:
        async with (
            CompletionEngine().serving(monkeypatch) as engine,
            serving_inference_api(lambda *_: engine.url) as api,
        ):
            api.add(*adapters)
            found.append(ThreadedApi(str(api.client.base_url).removesuffix("/v1/"), api, engine))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()
