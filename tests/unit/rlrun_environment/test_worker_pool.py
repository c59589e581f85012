"""The pool's dealings with a worker that breaks its word: it drops connections, or does not answer."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from rlrun.protocol.environment import DemonstrationRequest, EnvironmentConfig, GroupRequest
from rlrun.service.errors import ProblemError
from rlrun_environment import worker_pool as pools
from rlrun_environment.phases import WorkPhase, write_phase
from rlrun_environment.worker_pool import Worker, WorkerPool

REQUEST = GroupRequest(group_id="g", example_index=0, rollouts=2, base_url="http://x/v1", model="m", deadline_seconds=5)


@asynccontextmanager
async def played_worker(*routes: web.RouteDef) -> AsyncIterator[tuple[WorkerPool, Worker]]:
    """A pool of one worker that lives and has these routes."""
    pool = WorkerPool(EnvironmentConfig(id="tester/broken"), Path("/environment"), load_deadline=10.0, hang_grace=0.1)
    worker = pool.workers[0]
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(worker.socket)).start()
    worker.session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(worker.socket)))
    worker.process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import time; time.sleep(600)", start_new_session=True
    )
    worker.ready = True
    yield pool, worker
    await pool.close()
    await runner.cleanup()


@pytest.fixture
async def broken() -> AsyncIterator[tuple[WorkerPool, Worker]]:
    """A pool of one worker that lives, drops the connection of every group and never answers anything else."""

    async def drop(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def ignore(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async with played_worker(web.post("/groups", drop), web.post("/demonstrations", ignore)) as played:
        yield played


@pytest.mark.slow
async def test_a_worker_that_lives_and_drops_connections_is_killed(broken, monkeypatch):
    monkeypatch.setattr(pools, "ENDING_SECONDS", 0.1)
    pool, worker = broken
    process = worker.process
    result = await pool.run(REQUEST)
    assert [r.error.reason for r in result.rollouts] == ["EnvironmentWorkerDied"] * 2
    assert "closed its connection and was killed" in result.rollouts[0].error.message
    assert await asyncio.wait_for(process.wait(), 10) == -9
    with pytest.raises(ProblemError, match="EnvironmentWorkerDied"):
        await pool.run(REQUEST)


@pytest.mark.slow
async def test_a_demonstration_has_a_deadline(broken, monkeypatch):
    monkeypatch.setattr(pools, "DEMONSTRATION_SECONDS", 0.1)
    with pytest.raises(ProblemError, match="EnvironmentBusy") as refusal:
        await broken[0].demonstrate(DemonstrationRequest(example_index=0))
    assert refusal.value.status == 503
    assert broken[1].ready


@pytest.mark.slow
async def test_a_worker_that_never_says_what_it_loaded_has_a_deadline(monkeypatch):
    monkeypatch.setattr(pools, "PREPARE_SECONDS", 0.5)

    async def ignore(request: web.Request) -> web.Response:
        await asyncio.sleep(600)
        return web.Response()

    async with played_worker(web.get("/info", ignore)) as (pool, worker):
        worker.ready = False
        write_phase(worker.socket, WorkPhase.rollout)
        async with asyncio.timeout(60):
            await pool._wait_until_loaded(worker)
        assert pool.problem.reason == "EnvironmentLoadFailed"
        assert "did not respond within 0.5 s in the phase rollout" in pool.problem.message


@pytest.mark.slow
async def test_a_worker_that_sends_too_much_is_killed_and_costs_its_group_only(tmp_path, monkeypatch):
    for name, limit in (("MAX_RESPONSE_BYTES", 10_000), ("max_result_bytes", lambda rollouts: rollouts * 5_000)):
        monkeypatch.setattr(pools, name, limit)
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):
            while sent < 10**9:
                await response.write(b"x" * 10_000)
                sent += 10_000
        return response

    async with played_worker(web.post("/groups", flood), web.post("/demonstrations", flood)) as (pool, worker):
        process = worker.process
        with pytest.raises(ProblemError, match="more than 10,000 bytes"):
            await pool.demonstrate(DemonstrationRequest(example_index=0))
        assert process.returncode is None
        result = await pool.run(REQUEST)
        assert [r.error.reason for r in result.rollouts] == ["EnvironmentWorkerDied"] * 2
        assert "more than 10,000 bytes" in result.rollouts[0].error.message
        assert await asyncio.wait_for(process.wait(), 10) == -9
    assert sent < 10**9, "the rest was not read"
