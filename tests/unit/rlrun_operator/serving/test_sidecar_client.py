"""The operator's requests to a pool's sidecars, to a server that asks for the pool's token."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rlrun.constants import ROLE_LABEL, SERVING_LABEL
from rlrun.protocol.serving import DesiredAdapters, ServingReport
from rlrun.protocol.shared_pool import PoolOrder, TrainerOrder, TrainerSessions
from rlrun.service.access import token_middleware
from rlrun.service.errors import RequestRejected
from rlrun.service.server import json_response, read_model
from rlrun_operator.resources.access.run_tokens import pool_token, run_token, shared_pool_token
from rlrun_operator.resources.serving_pool import PoolIdentity
from rlrun_operator.serving.sidecar_client import PoolSidecarClient

from tests.support.clocks import Clock

KEY = b"k" * 32
POOL = PoolIdentity("team", "a/b")
POD = {
    "metadata": {"name": "pod", "namespace": POOL.namespace, "labels": {SERVING_LABEL: POOL.name}},
    "status": {"podIP": "10.0.0.1"},
}
SHARED = PoolIdentity("team", "a/b", "0123abcd")
POD_OF_RUNS = {**POD, "metadata": {"name": "pod", "namespace": "team", "labels": {SERVING_LABEL: SHARED.name}}}
RUNS = PoolOrder(base="a/b", runs=[])
SENT = 1_767_225_600_000
"""START of the clock in milliseconds."""
ORDER = DesiredAdapters(base="a/b", adapters=[])


def clients_of(server: TestServer) -> tuple[PoolSidecarClient, PoolSidecarClient]:
    """A client with the operator's key, and one with another key."""
    base, clock = f"http://127.0.0.1:{server.port}", Clock()
    urls = f"{base}/adapters", f"{base}/trainer/sessions"
    return PoolSidecarClient(urls[0], KEY, clock, urls[1]), PoolSidecarClient(urls[0], b"x" * 32, clock, urls[1])


async def test_the_operator_sends_the_token_of_the_pods_pool() -> None:
    async def report(_: web.Request) -> web.Response:
        return json_response(ServingReport(order=ORDER, adapters=[]))

    app = web.Application(middlewares=[token_middleware(pool_token(KEY, POOL.namespace, POOL.name))])
    app.add_routes([web.get("/adapters", report), web.put("/adapters", report)])
    server = TestServer(app)
    await server.start_server()
    sidecars, other = clients_of(server)
    try:
        assert (await sidecars.fetch_report(POD)).order == ORDER
        assert (await sidecars.push_desired(POD, ORDER)).order == ORDER
        with pytest.raises(RequestRejected, match="token"):
            await other.push_desired(POD, ORDER)
    finally:
        await sidecars.close()
        await other.close()
        await server.close()


async def test_an_order_is_sent_with_the_token_of_the_shared_pool() -> None:
    received: list[PoolOrder] = []

    async def accept(request: web.Request) -> web.Response:
        received.append(await read_model(request, PoolOrder))
        return json_response(received[-1])

    token = shared_pool_token(KEY, "team", SHARED.name)
    assert token != pool_token(KEY, "team", SHARED.name)
    app = web.Application(middlewares=[token_middleware(token)])
    app.add_routes([web.put("/pool-order", accept)])
    server = TestServer(app)
    await server.start_server()
    sidecars, other = clients_of(server)
    try:
        await sidecars.push_order(POD_OF_RUNS, RUNS)
        assert received == [RUNS.model_copy(update={"number": SENT})]
        with pytest.raises(RequestRejected, match="token"):
            await other.push_order(POD_OF_RUNS, RUNS)
    finally:
        await sidecars.close()
        await other.close()
        await server.close()


async def test_the_trainer_of_a_pool_gets_its_own_order() -> None:
    answer = TrainerSessions(sessions=["uid-a", "uid-b"])

    async def accept(request: web.Request) -> web.Response:
        assert await read_model(request, TrainerOrder) == TrainerOrder(number=SENT)
        return json_response(answer)

    app = web.Application(middlewares=[token_middleware(shared_pool_token(KEY, "team", SHARED.name))])
    app.add_routes([web.put("/trainer/pool-order", accept)])
    server = TestServer(app)
    await server.start_server()
    sidecars, other = clients_of(server)
    labels = {SERVING_LABEL: SHARED.name, ROLE_LABEL: "trainer"}
    pod = {**POD_OF_RUNS, "metadata": {**POD_OF_RUNS["metadata"], "labels": labels}}
    try:
        assert await sidecars.push_trainer_order(pod, TrainerOrder()) == answer
    finally:
        await sidecars.close()
        await other.close()
        await server.close()


def test_the_trainers_port_is_the_default() -> None:
    client = PoolSidecarClient("http://{ip}:8001/adapters", KEY, Clock())
    labels = {SERVING_LABEL: SHARED.name, ROLE_LABEL: "trainer"}
    assert client._url({**POD, "metadata": {**POD["metadata"], "labels": labels}}) == "http://10.0.0.1:8080/sessions"


def test_pools_runs_and_namespaces_have_different_tokens() -> None:
    tokens = [pool_token(KEY, "a", "p"), pool_token(KEY, "b", "p"), pool_token(KEY, "a", "q"), run_token(KEY, "a/p")]
    assert len(set(tokens)) == len(tokens)
