"""Threads of tenants: turns, and bounds."""

import asyncio
import threading

import pytest
from rlrun_server.rest.base import tenant_queue
from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.base.tenant_queue import TenantQueue


async def test_slow_calls_of_one_tenant_delay_no_other() -> None:
    queue, may_end = TenantQueue(2, "test"), threading.Event()
    try:
        slow = [asyncio.create_task(queue.run("slow", may_end.wait, 30)) for _ in range(10)]
        await asyncio.sleep(0)
        for _ in range(3):
            assert await asyncio.wait_for(queue.run("fast", lambda: 1), 20) == 1
        assert not any(task.done() for task in slow)
        may_end.set()
        assert await asyncio.gather(*slow) == [True] * 10
    finally:
        may_end.set()
        queue.close()


async def test_a_tenant_has_a_few_calls_at_a_time() -> None:
    queue, may_end = TenantQueue(4, "test", at_once=2), threading.Event()
    began = threading.Semaphore(0)

    def call() -> bool:
        began.release()
        return may_end.wait(30)

    calls = [asyncio.create_task(queue.run("a", call)) for _ in range(4)]
    for _ in range(2):
        assert await asyncio.to_thread(began.acquire, timeout=10)
    assert await queue.run("b", lambda: 1) == 1
    assert not began.acquire(blocking=False)
    may_end.set()
    assert all(await asyncio.gather(*calls))
    assert not queue._busy
    queue.close()


async def test_a_call_counts_until_it_ends() -> None:
    """The caller may have left before: a thread cannot be cancelled."""
    queue, may_end = TenantQueue(2, "test"), threading.Event()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.run("a", may_end.wait, 30), 0.02)
    later = asyncio.create_task(queue.run("a", lambda: 1))
    assert await queue.run("b", lambda: 1) == 1
    assert not later.done()
    may_end.set()
    assert await later == 1
    queue.close()


async def test_tenants_take_turns() -> None:
    queue, order, may_begin = TenantQueue(1, "test"), [], threading.Event()
    first = asyncio.create_task(queue.run("a", may_begin.wait, 30))
    await asyncio.sleep(0)
    names = ["a1", "a2", "a3", "b1", "b2", "c1"]
    calls = [asyncio.create_task(queue.run(name[0], order.append, name)) for name in names]
    await asyncio.sleep(0)
    may_begin.set()
    await asyncio.gather(first, *calls)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert not queue._waiting
    queue.close()


async def test_too_many_waiting_calls_of_a_tenant_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_queue, "MAX_WAITING", 2)
    queue, may_end = TenantQueue(1, "test"), threading.Event()
    calls = [asyncio.create_task(queue.run("a", may_end.wait, 30)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(RestError) as refused:
        await queue.run("a", lambda: None)
    assert (refused.value.status, refused.value.reason) == (429, "TooManyRequests")
    other = asyncio.create_task(queue.run("b", lambda: 1))
    may_end.set()
    assert await other == 1
    await asyncio.gather(*calls)
    queue.close()


async def test_a_call_whose_client_has_left_is_left_out() -> None:
    queue, may_end, ran = TenantQueue(1, "test"), threading.Event(), []
    first = asyncio.create_task(queue.run("a", may_end.wait, 30))
    await asyncio.sleep(0)
    left = asyncio.create_task(queue.run("a", ran.append, 1))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait({left})
    may_end.set()
    await first
    await queue.run("a", ran.append, 2)
    assert ran == [2]
    queue.close()


async def test_exceptions_are_those_of_the_call() -> None:
    queue = TenantQueue(1, "test")
    with pytest.raises(ZeroDivisionError):
        await queue.run("a", lambda: 1 / 0)
    assert await queue.run("a", lambda: 1) == 1
    queue.close()


async def test_fewer_calls_may_wait_where_they_need_memory() -> None:
    queue, may_end = TenantQueue(1, "test", waiting=1), threading.Event()
    calls = [asyncio.create_task(queue.run("a", may_end.wait, 30)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(RestError):
        await queue.run("a", lambda: None)
    may_end.set()
    await asyncio.gather(*calls)
    with pytest.raises(ZeroDivisionError):
        await queue.run("a", lambda: 1 / 0)
    queue.close()
