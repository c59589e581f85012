"""The server that answers for the orchestrators of all runs."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from rlrun.protocol.orchestrator import RunStatus

from bench.scale.testbed.orchestrators import Orchestrators, StepSchedule


@given(st.text(min_size=1), st.floats(0.1, 100), st.integers(1, 50), st.floats(0, 1000))
def test_a_step_is_made_at_its_time_and_not_before(run: str, seconds: float, first: int, after: float) -> None:
    pace = StepSchedule(seconds, 1000.0, first)
    step = pace.step(run, 1000 + after)
    assert first <= step <= first + after / seconds + 1
    made = pace.made_at(run, step + 1)
    assert made > 1000 + after - 1e-6
    assert pace.step(run, made + 1e-3) == step + 1


@given(st.text(min_size=1), st.floats(0.1, 100), st.floats(0, 1000))
def test_the_next_step_is_made_at_the_time_that_is_waited_for(run: str, seconds: float, after: float) -> None:
    pace, now = StepSchedule(seconds, 1000.0), 1000 + after
    change = pace.next_step_at(run, now)
    assert now - 1e-6 < change
    assert pace.step(run, change + 1e-3) == pace.step(run, now) + 1


@given(st.text(min_size=1), st.floats(0.1, 100), st.floats(0, 1000))
def test_the_last_step_is_the_one_before_the_next(run: str, seconds: float, after: float) -> None:
    pace, now = StepSchedule(seconds, 1000.0), 1000 + after
    last, step = pace.last_step_at(run, now), pace.step(run, now)
    assert last is not None
    assert 1000 <= last <= now + 1e-6
    assert step == pace.first or abs(pace.made_at(run, step + 1) - last - seconds) < 1e-6


def test_without_a_pace_no_run_makes_steps() -> None:
    assert StepSchedule(0, 1000.0, 7).step("a/b", 5000.0) == 7


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    runner = web.AppRunner(Orchestrators().app(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_orchestrators_of_silent_namespaces_do_not_answer_and_others_do() -> None:
    async with serving() as url, aiohttp.ClientSession() as session:
        await session.put(f"{url}/silent", json={"namespaces": ["silent"]})
        for place, answers in (("silent", False), ("other", True)):
            try:
                async with asyncio.timeout(0.5), session.get(f"{url}/{place}/run") as response:
                    assert response.status == 200
                found = True
            except TimeoutError:
                found = False
            assert found is answers


async def test_a_request_hangs_until_a_step_is_made() -> None:
    async with serving() as url, aiohttp.ClientSession() as session:

        async def status(query: str) -> RunStatus:
            async with session.get(f"{url}/team/first{query}") as response:
                return RunStatus.model_validate(await response.json())

        first = await status("?since=")
        assert (first.step, first.version) == (1, "1")
        began = time.monotonic()
        hanging = asyncio.create_task(status("?since=1&wait=30"))
        await asyncio.sleep(0.1)
        assert not hanging.done()
        assert first.last_step_time is None
        await session.put(f"{url}/pace", json={"seconds": 0.2})
        second = await hanging
        assert second.step >= 2
        assert second.last_step_time is not None
        assert abs(time.time() - second.last_step_time.timestamp()) < 10
        assert time.monotonic() - began < 10
        await session.put(f"{url}/pace", json={"seconds": 0, "first": 9})
        assert (await status("?since=2&wait=30")).step == 9
