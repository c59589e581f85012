"""Replicas: publication of policies, whole weights one version at a time, and restarts."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from rlrun.protocol.inference import LoadRequest
from rlrun.protocol.policy import PolicyKind, PolicyRef
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroups
from rlrun_orchestrator.inference.replica_pool import Replica, ReplicaAddresses, ReplicaPool

from tests.support.fake_replica import FakeReplica
from tests.support.policy_refs import policy
from tests.support.run_processes import serve
from tests.support.waiting import until

RUN = "s3://bucket/run"
TRAINER = "http://trainer:8080/sessions/u/policies"


def weights(version: int, lineage: str = "") -> PolicyRef:
    return policy(version, RUN, lineage).model_copy(update={"kind": PolicyKind.weights})


@dataclass
class WeightsSidecar:
    """A sidecar whose engine holds one version."""

    held: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    broken: bool = False

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/adapters", self.listed)
        app.router.add_put("/adapters/{name}", self.load)
        app.router.add_delete("/adapters/{name}", self.unload)
        return app

    async def listed(self, _: web.Request) -> web.Response:
        self.calls.append("list")
        return web.json_response({"adapters": self.held})

    async def load(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.calls.append(f"load {name}")
        if self.broken:
            return web.json_response({"reason": "WeightsLoadRejected", "message": "broken"}, status=502)
        self.held = [name]
        return web.json_response({"adapters": self.held, "loadSeconds": 0.01})

    async def unload(self, request: web.Request) -> web.Response:
        self.calls.append(f"unload {request.match_info['name']}")
        return web.json_response({"adapters": self.held})


@dataclass
class Setup:
    groups: LiveGroups
    pool: ReplicaPool
    sidecars: list[WeightsSidecar]

    async def publish(self, ref: PolicyRef, grace: float = 2.0) -> None:
        await self.pool.publish(ref, deadline=5, grace=grace)

    @property
    def replicas(self) -> list[Replica]:
        return list(self.pool.replicas.values())


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    sidecars = [WeightsSidecar(), WeightsSidecar()]
    servers = [await serve(sidecar.application()) for sidecar in sidecars]
    endpoints = [ReplicaAddresses(*[str(server.make_url("")).rstrip("/")] * 2) for server in servers]

    async def resolve() -> list[ReplicaAddresses]:
        return endpoints

    async with aiohttp.ClientSession() as http:
        groups = LiveGroups("owner/tiny")
        # So rarely that nothing in here can rest on a poll.
        pool = ReplicaPool(http, resolve, groups.policies, poll_interval=60)
        pool.start()
        yield Setup(groups, pool, sidecars)
        await pool.close()
    for server in servers:
        await server.close()


async def test_every_replica_takes_the_newest_weights_and_none_is_ever_unloaded(setup: Setup) -> None:
    for version in range(3):
        await setup.publish(weights(version))
        assert setup.pool.serving(weights(version).name) == 2
    loads = [f"load {weights(version).name}" for version in range(3)]
    for sidecar in setup.sidecars:
        assert [call for call in sidecar.calls if call != "list"] == loads


async def test_a_group_of_a_full_weight_run_continues_with_newer_weights(setup: Setup) -> None:
    await setup.publish(weights(0))
    group = setup.groups.open(weights(0))
    assert group.model == "owner/tiny"
    await setup.publish(weights(1))
    await setup.publish(weights(2))
    assert setup.sidecars[0].held == [weights(2).name]
    assert setup.pool.choose(group.served.required_policy, group.home) is not None


async def test_weights_of_an_abandoned_lineage_are_not_served(setup: Setup) -> None:
    """The trainer fell back from step 2 to step 1: version 2 is no newer form of the second version 1."""
    await setup.publish(weights(1))
    await setup.publish(weights(2))
    setup.sidecars[1].broken = True
    await setup.publish(weights(1, "again"), grace=0.1)
    able = [replica for replica in setup.replicas if replica.serves(weights(1, "again").name)]
    assert [replica.adapters for replica in able] == [able[0].adapters]
    assert setup.sidecars[1].held == [weights(2).name]


async def test_replaced_weights_leave_no_base_model(setup: Setup) -> None:
    base = setup.groups.open(weights(0), record=False, base=True)
    await setup.publish(weights(0))
    assert setup.pool.choose(base.served.required_policy, None) is None
    assert setup.pool.serving(None) == 0


async def test_weights_of_an_earlier_process_are_always_replaced(setup: Setup) -> None:
    for sidecar in setup.sidecars:
        sidecar.held = ["policy-v000009-ffffffff"]
    await setup.publish(weights(3))
    assert all(sidecar.held == [weights(3).name] for sidecar in setup.sidecars)


async def test_a_publication_loads_once_on_each_busy_engine(setup: Setup) -> None:
    await setup.publish(weights(0))
    loads_at_once = []
    # On a busy machine another look may fall between two publications. If each began with a look, all of them would.
    for version in range(1, 11):
        for sidecar in setup.sidecars:
            # The look that follows a publication.
            await until(lambda sidecar=sidecar: sidecar.calls[-1] == "list")
            sidecar.calls.clear()
        await setup.publish(weights(version))
        load = f"load {weights(version).name}"
        assert [sidecar.calls.count(load) for sidecar in setup.sidecars] == [1, 1]
        loads_at_once.append(all(sidecar.calls[0] == load for sidecar in setup.sidecars))
    assert any(loads_at_once)


async def test_closing_during_a_wake_up_finishes(setup: Setup) -> None:
    await setup.publish(weights(0))
    setup.pool._wake_all()
    await asyncio.wait_for(setup.pool.close(), 5)


class HeldReplica(FakeReplica):
    """A replica whose loads wait for a sign, and which remembers how it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.asked = asyncio.Event()
        self.fallbacks: list[str | None] = []
        self.nothing_there = False
        self.space: int | None = None
        """Maximum number of policies. None: all fit."""

    async def load(self, request: web.Request) -> web.Response:
        self.fallbacks.append(LoadRequest.model_validate_json(await request.read()).fallback)
        self.asked.set()
        await self.may_load.wait()
        if self.nothing_there:
            return web.json_response({"reason": "AdapterDownloadFailed", "message": "S3Unreachable"}, status=503)
        if self.space is not None and len(self.adapters) >= self.space:
            return web.json_response({"reason": "AdapterDownloadFailed", "message": "no space"}, status=409)
        return await super().load(request)


@dataclass
class RestartSetup:
    groups: LiveGroups
    pool: ReplicaPool
    engines: list[HeldReplica]
    endpoints: list[ReplicaAddresses]

    async def until_serving(self, name: str, count: int) -> None:
        async with asyncio.timeout(60):
            while self.pool.serving(name) != count:
                await self.pool.wait_for_change(1.0)


@pytest.fixture
async def restarting() -> AsyncIterator[RestartSetup]:
    engines = [HeldReplica(), HeldReplica()]
    servers = [await serve(engine.application()) for engine in engines]
    endpoints = [ReplicaAddresses(*[str(server.make_url("")).rstrip("/")] * 2) for server in servers]

    async def resolve() -> list[ReplicaAddresses]:
        return endpoints

    async with aiohttp.ClientSession() as http:
        groups = LiveGroups("owner/tiny")
        pool = ReplicaPool(http, resolve, groups.policies, poll_interval=0.05, fallback_url=TRAINER)
        pool.start()
        yield RestartSetup(groups, pool, engines, endpoints)
        for engine in engines:
            engine.may_load.set()
        await pool.close()
    for server in servers:
        await server.close()


async def test_restarted_replica_serves_only_after_its_policies_are_loaded(restarting: RestartSetup) -> None:
    old, new = policy(1, RUN), policy(2, RUN)
    await restarting.pool.publish(old, deadline=5, grace=5)
    group = restarting.groups.open(old)
    await restarting.pool.publish(new, deadline=5, grace=5)
    first = restarting.engines[0]
    first.may_load.clear()
    first.asked.clear()
    first.restart()
    # Its sidecar's list is what counts: it has nothing, and is asked to load.
    await asyncio.wait_for(first.asked.wait(), 10)
    other = restarting.pool.replicas[restarting.endpoints[1]]
    for wanted in (old.name, new.name):
        assert restarting.pool.serving(wanted) == 1
        for home in (None, restarting.pool.replicas[restarting.endpoints[0]]):
            assert restarting.pool.choose(wanted, home) is other
    first.may_load.set()
    for wanted in (new.name, old.name):
        await restarting.until_serving(wanted, 2)
    # What groups under way are pinned to comes back as well as the newest.
    assert first.adapters == {old.name, new.name}
    home = restarting.pool.replicas[restarting.endpoints[0]]
    assert restarting.pool.choose(group.served.required_policy, home) is not other


async def test_load_request_names_the_trainers_url_as_fallback(restarting: RestartSetup) -> None:
    await restarting.pool.publish(policy(1, RUN), deadline=5, grace=5)
    assert restarting.engines[0].fallbacks == [f"{TRAINER}/{policy(1, RUN).name}"]


async def test_missing_files_keep_a_replica_serving_its_loaded_policies(restarting: RestartSetup) -> None:
    old, new = policy(1, RUN), policy(2, RUN)
    await restarting.pool.publish(old, deadline=5, grace=5)
    first = restarting.engines[0]
    first.nothing_there = True
    await restarting.pool.publish(new, deadline=5, grace=0.2)
    assert restarting.pool.serving(new.name) == 1
    first.asked.clear()
    await asyncio.wait_for(first.asked.wait(), 10)
    assert restarting.pool.serving(old.name) == 2
    problem = restarting.pool.replicas[restarting.endpoints[0]].problem
    assert problem is not None
    assert problem.reason == "AdapterDownloadFailed"
    first.nothing_there = False
    await restarting.until_serving(new.name, 2)


async def test_a_sidecar_without_space_gets_space_from_unused_policies(restarting: RestartSetup) -> None:
    for engine in restarting.engines:
        engine.adapters = {policy(8, RUN).name, policy(9, RUN).name}
        engine.space = 2
    await restarting.pool.publish(policy(1, RUN), deadline=60, grace=60)
    assert restarting.pool.serving(policy(1, RUN).name) == 2


async def test_an_older_policy_is_loaded_once_there_is_space(restarting: RestartSetup) -> None:
    old, new = policy(1, RUN), policy(2, RUN)
    await restarting.pool.publish(old, deadline=60, grace=60)
    restarting.groups.open(old)
    await restarting.pool.publish(new, deadline=60, grace=60)
    first = restarting.engines[0]
    first.space = 1
    first.restart()
    home = restarting.pool.replicas[restarting.endpoints[0]]
    await until(lambda: first.adapters == {new.name} and home.problem is not None)
    assert home.serves(new.name)
    first.space = None
    await restarting.until_serving(old.name, 2)
