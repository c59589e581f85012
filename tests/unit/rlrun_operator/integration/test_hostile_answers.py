"""Answers that a tenant's pod may give to the operator: what they cost, and what stays of them."""

import asyncio
import contextlib
import gc
import gzip
import itertools
import json
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from rlrun.service.client import HttpClient
from rlrun.service.errors import RequestError
from rlrun_operator.controller import orchestrator_client
from rlrun_operator.controller.orchestrator_client import OrchestratorClient
from rlrun_operator.planning.observation import RunKey
from rlrun_operator.serving.sidecar_client import PoolSidecarClient

from tests.support.clocks import Clock

Ask = Callable[[int], Awaitable[Any]]
MIB = 1024**2
SIZES = {"status": 128 * 1024, "report": MIB}
"""Largest answers that are read."""
CPU_SECONDS = {"status": 0.1, "report": 1.0}
"""Most that one answer may take of the operator's loop, with what the sender takes in the same process."""
PEAK, KEPT = 24 * MIB, MIB
STARTS = {
    "status": b'{"phase":"Running","version":"1","step":%d,"warnings":[',
    "report": b'{"order":{"base":"m"},"adapters":[%.0d',
}
ITEMS = {"status": b'{"reason":"x","message":"y"}', "report": b'{"name":"x","state":"loaded"}'}


def bodies(kind: str) -> dict[str, tuple[bytes, str]]:
    """Return bodies, with their encodings."""
    start, size = STARTS[kind] % 1, SIZES[kind] - 200
    dense = start + b",".join([ITEMS[kind]] * (MIB // 40)) + b"]}"
    return {
        "empty items": (start + b",".join([b"{}"] * (MIB // 3 - 100)) + b"]}", ""),
        "empty items within its size": (start + b",".join([b"{}"] * (size // 3)) + b"]}", ""),
        "dense valid items": (dense, ""),
        "dense valid items within its size": (start + b",".join([ITEMS[kind]] * (size // 40)) + b"]}", ""),
        "compressed": (gzip.compress(b" " * 64 * MIB + dense), "gzip"),
        "unknown keys": (b"{" + b",".join(b'"k%d":1' % number for number in range(size // 12)) + b"}", ""),
        "one text": (json.dumps({"phase": "Running", "version": "a" * (size - 100)}).encode(), ""),
        "deep": (b"[" * (size // 2) + b"]" * (size // 2), ""),
        "a long number": (b'{"step":' + b"9" * (size - 100) + b"}", ""),
    }


@pytest.fixture
async def answers() -> AsyncIterator[Callable[[bytes, str], Awaitable[str]]]:
    servers: list[asyncio.Server] = []

    async def serve(body: bytes, encoding: str) -> str:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.readuntil(b"\r\n\r\n")
                coding = f"Content-Encoding: {encoding}\r\n" if encoding else ""
                head = f"HTTP/1.1 200 OK\r\nConnection: close\r\n{coding}Content-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
            except OSError:
                pass
            finally:
                writer.close()

        servers.append(await asyncio.start_server(answer, "127.0.0.1", 0))
        return f"http://127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}"

    yield serve
    for server in servers:
        server.close()


def client_of(kind: str, url: str) -> tuple[OrchestratorClient | PoolSidecarClient, Ask]:
    """Return a client of the operator, and the request of one run or pod."""
    if kind == "status":
        orchestrators = OrchestratorClient(f"{url}/{{namespace}}/{{name}}", lambda *_: None, 60.0, watches=0)
        return orchestrators, lambda number: orchestrators.status(RunKey("evil", f"r{number}"), "t", is_fresh=True)
    sidecars = PoolSidecarClient(f"{url}/{{namespace}}/{{name}}", b"k" * 32, Clock())

    def fetch(number: int) -> Awaitable[Any]:
        metadata = {"namespace": "evil", "name": f"p{number}", "labels": {}}
        return sidecars.fetch_report({"metadata": metadata, "status": {"podIP": "127.0.0.1"}})

    return sidecars, fetch


@pytest.mark.parametrize("body", bodies("status"))
@pytest.mark.parametrize("kind", STARTS)
async def test_an_answer_costs_little_and_leaves_little(
    kind: str, body: str, answers: Callable[[bytes, str], Awaitable[str]]
) -> None:
    client, ask = client_of(kind, await answers(*bodies(kind)[body]))
    found: list[Any] = []

    async def asked(number: int) -> None:
        try:
            found.append(await ask(number))
        except RequestError as error:
            found.append(error.with_traceback(None))

    await asked(0)
    gc.collect()
    start = time.process_time()
    for number in range(1, 4):
        await asked(number)
    seconds = (time.process_time() - start) / 3
    found.clear()
    tracemalloc.start()
    await asked(4)
    peak = tracemalloc.get_traced_memory()[1]
    gc.collect()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    await client.close()
    assert seconds < CPU_SECONDS[kind]
    assert peak < PEAK
    assert kept < KEPT


@pytest.mark.parametrize("body", ["dense valid items within its size", "empty items within its size"])
async def test_orchestrators_that_answer_at_once_are_asked_again_after_a_pause_as_long_as_their_answers_are_expensive(
    body: str, answers: Callable[[bytes, str], Awaitable[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked, times = await answers(*bodies("status")[body]), list[str](), itertools.count()
    monkeypatch.setattr(orchestrator_client, "thread_time", lambda: float(next(times)))
    fetch = HttpClient.fetch

    async def count(self: HttpClient, method: str, url: str, *args: Any, **kwargs: Any) -> bytes:
        asked.append(url)
        return await fetch(self, method, url, *args, **kwargs)

    monkeypatch.setattr(HttpClient, "fetch", count)
    client = OrchestratorClient(f"{url}/{{namespace}}/{{name}}", lambda *_: None, 0.001)
    for number in range(5):
        with contextlib.suppress(RequestError):
            await client.status(RunKey("evil", f"r{number}"), "t")
    await asyncio.sleep(1.0)
    await client.close()
    assert len(asked) <= 10, "each has the first request, and at most one before its cost is known"
