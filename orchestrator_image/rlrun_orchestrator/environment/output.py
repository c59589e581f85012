"""What a worker prints, passed on to the pod's log at a pace that the log can take.

Users' code may print gigabytes. A log that rotates every second is no log, and a full disk evicts the pod. So each
worker may print a burst, then so many bytes a second; the rest is read, counted and thrown away.
"""

import asyncio
import os
import time
from collections.abc import Callable

BURST_BYTES = 1024**2
BYTES_PER_SECOND = 64 * 1024
CHUNK = 256 * 1024
DRAIN_SECONDS = 1.0
"""For the last words of a worker that has ended; its children may hold its output open for ever."""


class Allowance:
    """Bytes that may be printed now: a bucket of `burst` bytes that fills at `rate` per second."""

    def __init__(self, burst: int = BURST_BYTES, rate: int = BYTES_PER_SECOND, now: float | None = None) -> None:
        self._burst, self._rate = burst, rate
        self._left = float(burst)
        self._at = time.monotonic() if now is None else now

    def take(self, size: int, now: float | None = None) -> int:
        """How many of `size` bytes may be printed."""
        now = time.monotonic() if now is None else now
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        granted = min(size, int(self._left))
        self._left -= granted
        return granted


class Output:
    """One worker's output. Its own pipe: asyncio's would let a child that holds it open hide the worker's end."""

    def __init__(self, who: str, write: Callable[[bytes], object] = lambda data: os.write(1, data)) -> None:
        self._who = who
        self._write = write
        self._allowance = Allowance()
        self._dropped = 0
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.ReadTransport | None = None

    async def open(self) -> int:
        """Begin to read; the descriptor to write to, which the caller closes once the worker has it."""
        ours, theirs = os.pipe()
        reader = asyncio.StreamReader(limit=CHUNK)
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", buffering=0)
        )
        self._task = asyncio.create_task(self._pass_on(reader))
        return theirs

    async def close(self) -> None:
        """Pass on what is left, for a moment, and stop reading."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=DRAIN_SECONDS)
            self._task.cancel()
            self._tell()
        if self._transport is not None:
            self._transport.close()

    async def _pass_on(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            granted = self._allowance.take(len(data))
            if granted == len(data):
                self._tell()
            self._dropped += len(data) - granted
            if granted:
                self._put(data[:granted])

    def _tell(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._put(f"\n{self._who} printed {dropped:,} bytes more than its log takes\n".encode())

    def _put(self, data: bytes) -> None:
        # A log that takes nothing must not stop the reading: a worker whose pipe is full stands still.
        try:
            self._write(data)
        except OSError:
            self._dropped += len(data)
