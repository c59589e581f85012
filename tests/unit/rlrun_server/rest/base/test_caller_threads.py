"""Threads that callers share."""

import asyncio
import threading

import pytest
from rlrun_server.rest.base import caller_threads
from rlrun_server.rest.base.caller_threads import AT_ONCE, UNFINISHED, CallerThreads
from rlrun_server.rest.base.problems import RestError


@pytest.fixture
def threads() -> CallerThreads:
    return CallerThreads("test")


async def test_results_and_errors(threads: CallerThreads) -> None:
    assert await threads.run("ann", lambda: 1) == 1
    with pytest.raises(KeyError):
        await threads.run("ann", dict[str, int]().__getitem__, "x")
    assert threads._callers == {}
    assert threads._unfinished == 0


async def test_a_caller_has_a_few_at_a_time(threads: CallerThreads) -> None:
    gate, running, most, lock = threading.Event(), 0, 0, threading.Lock()

    def call() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.wait(10)
        with lock:
            running -= 1

    tasks = [asyncio.create_task(threads.run("ann", call)) for _ in range(UNFINISHED)]
    await asyncio.sleep(0.05)
    with pytest.raises(RestError) as refused:
        await threads.run("ann", call)
    assert refused.value.status == 429
    assert await threads.run("ben", lambda: "done") == "done"
    gate.set()
    await asyncio.gather(*tasks)
    assert most == AT_ONCE


async def test_all_callers_together_have_a_limit(threads: CallerThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller_threads, "UNFINISHED_OF_ALL", 3)
    gate = threading.Event()
    tasks = [asyncio.create_task(threads.run(f"user-{n}", gate.wait, 10)) for n in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(RestError) as refused:
        await threads.run("ann", lambda: 1)
    assert refused.value.status == 503
    gate.set()
    assert all(await asyncio.gather(*tasks))


async def test_a_call_counts_until_it_ends(threads: CallerThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller_threads, "WAIT_SECONDS", 0.02)
    gate = threading.Event()
    with pytest.raises(TimeoutError):
        await threads.run("ann", gate.wait, 10)
    assert threads._unfinished == 1
    gate.set()
    async with asyncio.timeout(5):
        while threads._unfinished:  # noqa: ASYNC110  # the thread tells nobody
            await asyncio.sleep(0.01)
