"""A replica that was restarted has its policies again before it gets requests, wherever their files come from."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest
from aiohttp import web
from rlrun.protocol.inference import LoadRequest
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroups
from rlrun_orchestrator.inference.replica_pool import Endpoint, ReplicaPool

from tests.support.run_processes import FakeEngine, policy, serve

RUN = "s3://bucket/run"
TRAINER = "http://trainer:8080/sessions/u/policies"


class Held(FakeEngine):
    """An engine whose loads wait for a sign, and which remembers how it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.asked = asyncio.Event()
        self.fallbacks: list[str | None] = []
        self.nothing_there = False

    async def load(self, request: web.Request) -> web.Response:
        self.fallbacks.append(LoadRequest.model_validate_json(await request.read()).fallback)
        self.asked.set()
        await self.may_load.wait()
        if self.nothing_there:
            return web.json_response({"reason": "AdapterDownloadFailed", "message": "S3Unreachable"}, status=503)
        return await super().load(request)


@dataclass
class Setup:
    groups: LiveGroups
    pool: ReplicaPool
    engines: list[Held]
    endpoints: list[Endpoint]

    async def until_serving(self, name: str, count: int) -> None:
        async with asyncio.timeout(60):
            while self.pool.serving(name) != count:
                await self.pool.changed(1.0)


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    engines = [Held(), Held()]
    servers = [await serve(engine.application()) for engine in engines]
    endpoints = [Endpoint(*[str(server.make_url("")).rstrip("/")] * 2) for server in servers]

    async def resolve() -> list[Endpoint]:
        return endpoints

    async with aiohttp.ClientSession() as http:
        groups = LiveGroups("owner/tiny")
        pool = ReplicaPool(http, resolve, groups.policies, poll_interval=0.05, fallback_url=TRAINER)
        pool.start()
        yield Setup(groups, pool, engines, endpoints)
        for engine in engines:
            engine.may_load.set()
        await pool.close()
    for server in servers:
        await server.close()


async def test_a_restarted_replica_serves_nobody_before_its_policies_are_loaded_again(setup: Setup) -> None:
    old, new = policy(1, RUN), policy(2, RUN)
    await setup.pool.publish(old, deadline=5, grace=5)
    group = setup.groups.open(old)
    await setup.pool.publish(new, deadline=5, grace=5)
    first = setup.engines[0]
    first.may_load.clear()
    first.asked.clear()
    first.restart()
    # Its sidecar's list is what counts: it has nothing, and is asked to load.
    await asyncio.wait_for(first.asked.wait(), 10)
    other = setup.pool.replicas[setup.endpoints[1]]
    for wanted in (old.name, new.name):
        assert setup.pool.serving(wanted) == 1
        for home in (None, setup.pool.replicas[setup.endpoints[0]]):
            assert setup.pool.choose(wanted, home) is other
    first.may_load.set()
    for wanted in (new.name, old.name):
        await setup.until_serving(wanted, 2)
    # What groups under way are pinned to comes back as well as the newest.
    assert first.adapters == {old.name, new.name}
    assert setup.pool.choose(group.required_policy, setup.pool.replicas[setup.endpoints[0]]) is not other


async def test_a_sidecar_hears_where_the_trainer_has_the_files(setup: Setup) -> None:
    await setup.pool.publish(policy(1, RUN), deadline=5, grace=5)
    assert setup.engines[0].fallbacks == [f"{TRAINER}/{policy(1, RUN).name}"]


async def test_files_that_are_nowhere_do_not_take_a_replica_from_the_policies_it_has(setup: Setup) -> None:
    old, new = policy(1, RUN), policy(2, RUN)
    await setup.pool.publish(old, deadline=5, grace=5)
    first = setup.engines[0]
    first.nothing_there = True
    await setup.pool.publish(new, deadline=5, grace=0.2)
    assert setup.pool.serving(new.name) == 1
    first.asked.clear()
    await asyncio.wait_for(first.asked.wait(), 10)
    assert setup.pool.serving(old.name) == 2
    problem = setup.pool.replicas[setup.endpoints[0]].problem
    assert problem is not None
    assert problem.reason == "AdapterDownloadFailed"
    first.nothing_there = False
    await setup.until_serving(new.name, 2)
