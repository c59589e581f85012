import asyncio
from typing import Any

import pytest
from rlrun_operator.planning.plan.observation import RunKey
from rlrun_operator.runtime.work_queue import WorkQueue, work

from tests.support.waiting import until

KEY = RunKey("n", "r")


async def test_a_key_added_repeatedly_is_queued_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(5):
        queue.add("a")
    assert len(queue) == 1
    assert await queue.get() == "a"
    assert len(queue) == 0


async def test_key_added_while_worked_on_comes_back_after_it() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await queue.get()
    queue.add("a")
    assert len(queue) == 0, "no two workers may have the same key"
    queue.done("a")
    assert await queue.get() == "a"


async def test_earliest_delay_wins_and_add_beats_delays() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 60)
    queue.add_after("a", 0.01)
    queue.add_after("a", 30)
    assert await asyncio.wait_for(queue.get(), 5) == "a"
    queue.done("a")
    assert queue.delayed == 0
    queue.add_after("b", 60)
    queue.add("b")
    assert await asyncio.wait_for(queue.get(), 1) == "b"
    assert queue.delayed == 0


async def test_backoff_grows_is_bounded_and_forgotten() -> None:
    queue: WorkQueue[str] = WorkQueue(base_delay=1, max_delay=5)
    delays = []
    for _ in range(5):
        delays.append(queue.retry("a"))
    assert delays == [1, 2, 4, 5, 5]
    queue.forget("a")
    assert queue.retry("a") == 1
    queue.close()


async def test_cancelled_waiter_loses_no_key() -> None:
    queue: WorkQueue[str] = WorkQueue()
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 1) == "a"


async def test_one_key_is_never_worked_on_twice_at_the_same_time() -> None:
    queue: WorkQueue[RunKey] = WorkQueue()
    busy, seen = set[RunKey](), 0

    async def reconcile(key: RunKey) -> float | None:
        nonlocal seen
        assert key not in busy
        busy.add(key)
        await asyncio.sleep(0.001)
        busy.remove(key)
        seen += 1
        return None

    workers = [asyncio.create_task(work(queue, reconcile)) for _ in range(4)]
    for i in range(40):
        queue.add(RunKey("n", f"r{i % 3}"))
        await asyncio.sleep(0.0005)
    await until(lambda: seen >= 6)
    for worker in workers:
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker


async def test_failure_is_tried_again_and_success_comes_back_when_asked() -> None:
    queue: WorkQueue[RunKey] = WorkQueue(base_delay=0.001)
    calls: list[str] = []
    done = asyncio.Event()

    async def reconcile(key: RunKey) -> float | None:
        calls.append("x")
        if len(calls) < 3:
            raise RuntimeError("not yet")
        if len(calls) == 4:
            done.set()
            return None
        return 0.001

    worker: asyncio.Task[Any] = asyncio.create_task(work(queue, reconcile))
    queue.add(KEY)
    await asyncio.wait_for(done.wait(), 5)
    worker.cancel()
    assert len(calls) == 4
