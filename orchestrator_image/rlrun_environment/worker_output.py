"""Forwards a worker's output to the pod's log, at a limited rate.

User code may print gigabytes. A log that rotates every second is useless, and a full disk evicts the pod. Each worker
may print a burst and then a limited number of bytes per second; the rest is read, counted and dropped.
"""

import asyncio
import os
import time
from collections.abc import Callable

BURST_BYTES = 1024**2
BYTES_PER_SECOND = 64 * 1024
CHUNK = 256 * 1024
DRAIN_SECONDS = 1.0
"""Time to read the remaining output of a worker that exited. The worker's children may keep the pipe open longer."""


class ByteRateLimiter:
    """Token bucket of `burst` bytes that refills at `rate` bytes per second."""

    def __init__(self, burst: int = BURST_BYTES, rate: int = BYTES_PER_SECOND, now: float | None = None) -> None:
        self._burst, self._rate = burst, rate
        self._left = float(burst)
        self._at = time.monotonic() if now is None else now

    def take(self, size: int, now: float | None = None) -> int:
        """Take up to `size` bytes from the bucket, and return how many were taken."""
        now = time.monotonic() if now is None else now
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        granted = min(size, int(self._left))
        self._left -= granted
        return granted


class WorkerLogPipe:
    """Output pipe of one worker. asyncio's own pipe would hide a worker's exit while a child keeps the pipe open."""

    def __init__(self, who: str, write: Callable[[bytes], object] = lambda data: os.write(1, data)) -> None:
        self._who = who
        self._write = write
        self._limiter = ByteRateLimiter()
        self._dropped = 0
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.ReadTransport | None = None

    async def open(self) -> int:
        """Start reading, and return the descriptor to write to. The caller closes it once the worker has it."""
        ours, theirs = os.pipe()
        reader = asyncio.StreamReader(limit=CHUNK)
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", buffering=0)
        )
        self._task = asyncio.create_task(self._pass_on(reader))
        return theirs

    async def close(self) -> None:
        """Forward the remaining output for up to `DRAIN_SECONDS` and stop reading."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=DRAIN_SECONDS)
            self._task.cancel()
            self._report_dropped()
        if self._transport is not None:
            self._transport.close()

    async def _pass_on(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            granted = self._limiter.take(len(data))
            if granted == len(data):
                self._report_dropped()
            self._dropped += len(data) - granted
            if granted:
                self._put(data[:granted])

    def _report_dropped(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._put(f"\n{self._who}: dropped {dropped:,} bytes of output that exceed the log's rate limit\n".encode())

    def _put(self, data: bytes) -> None:
        # A log that accepts no data must not stop the reading, because a worker blocks on a full pipe.
        try:
            self._write(data)
        except OSError:
            self._dropped += len(data)
