"""Work in a thread: bounded, also by what goes on after its client has left."""

import asyncio
import threading

import pytest
from rlrun_server.rest import work_queue
from rlrun_server.rest.problems import RestError
from rlrun_server.rest.work_queue import WorkQueue


async def test_more_calls_than_may_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "MAX_WAITING", 1)
    queue, may_end = WorkQueue("test"), threading.Event()
    try:
        calls = [asyncio.create_task(queue.run(may_end.wait, 10)) for _ in range(2)]
        await asyncio.sleep(0)
        calls[0].cancel()
        await asyncio.wait({calls[0]})
        with pytest.raises(RestError) as refused:
            await queue.run(lambda: None)
        assert (refused.value.status, refused.value.reason) == (503, "TooManyRequests")
        may_end.set()
        assert await calls[1]
        assert await queue.run(lambda: threading.current_thread().name) == "test_0"
    finally:
        may_end.set()
        queue.close()


async def test_exceptions_are_those_of_the_call() -> None:
    queue = WorkQueue("test")
    with pytest.raises(ZeroDivisionError):
        await queue.run(lambda: 1 / 0)
    queue.close()
