"""How much of what a worker prints reaches the log."""

import asyncio
import os
import re

from rlrun_environment.worker_output import ByteRateLimiter, WorkerLogPipe


def test_rate_limiter_allows_a_burst_and_then_its_rate():
    allowance = ByteRateLimiter(burst=100, rate=10, now=0.0)
    assert [allowance.take(60, 0.0), allowance.take(60, 0.0), allowance.take(60, 0.0)] == [60, 40, 0]
    assert [allowance.take(60, 3.0), allowance.take(60, 3.0)] == [30, 0]
    assert allowance.take(500, 1000.0) == 100


async def test_dropped_worker_output_is_counted_in_the_log():
    written: list[bytes] = []
    output = WorkerLogPipe("worker 0", written.append)
    descriptor = await output.open()
    await asyncio.to_thread(_print, descriptor, b"first\n" + b"x" * 4 * 1024**2)
    await output.close()
    text = b"".join(written)
    assert text.startswith(b"first\n")
    told = [
        int(n.replace(b",", b""))
        for n in re.findall(rb"\nworker 0: dropped ([\d,]+) bytes of output that exceed the log's rate limit\n", text)
    ]
    shown = len(re.sub(rb"\nworker 0: dropped [^\n]+\n", b"", text))
    # How much is let through besides the burst depends on the clock; nothing goes missing without a word.
    assert 1024**2 <= shown < 2 * 1024**2
    assert shown + sum(told) == len(b"first\n") + 4 * 1024**2


async def test_a_log_that_takes_nothing_does_not_hold_the_worker_up():
    def refuse(data: bytes) -> None:
        raise BlockingIOError

    output = WorkerLogPipe("worker 0", refuse)
    descriptor = await output.open()
    await asyncio.wait_for(asyncio.to_thread(_print, descriptor, b"x" * 1024**2), 20)
    await output.close()


def _print(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
