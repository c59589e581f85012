"""Open streams: what they cost the process is seen, and streams that are refused or end are no open ones."""

import asyncio
import subprocess
import sys

import pytest
from aiohttp import web

from bench.server.process_usage import ProcessUsage, cpu_seconds, resident_mb, usage_during
from bench.server.results import of_streams
from bench.server.streams import measure_streams
from tests.lab.bench.server.served import served

WASTEFUL = """
import asyncio
from aiohttp import web

async def stream(request):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b": open\\n\\n")
    held = bytearray(b"x" * 4_000_000)
    while True:
        for _ in range(20_000):
            pass
        await asyncio.sleep(0.01)

async def main():
    app = web.Application()
    app.add_routes([web.get("/stream", stream)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_memory_and_cpu_time_of_a_wasteful_server_are_seen() -> None:
    process = subprocess.Popen([sys.executable, "-c", WASTEFUL], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}/stream"
        before, during = asyncio.run(measure_streams([url] * 30, [{}, {}], process.pid, 0.5))
    finally:
        process.kill()
        process.wait()
    assert during.resident_mb - before.resident_mb > 100
    assert during.cores > before.cores
    assert during.cores > 0.1
    memory, cores = of_streams([(before, during)], 30, [0.1])
    assert memory.ratio == during.resident_mb
    assert cores.ratio == during.cores


def test_the_aim_is_that_of_all_memory() -> None:
    idle = ProcessUsage(60.0, 0.01)
    (row, _) = of_streams([(idle, ProcessUsage(megabytes, 0.1)) for megabytes in (140.0, 160.0, 170.0)], 200, [0.1])
    assert row.aim is not None
    assert row.ratio == 160.0
    assert not row.aim.met_by(row.ratio)


@pytest.mark.parametrize(
    ("status", "media_type", "text"), [(403, "text/event-stream", "403"), (200, "application/json", "json")]
)
def test_a_refused_stream_is_no_open_one(status: int, media_type: str, text: str) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=status, content_type=media_type, text="{}")

    with served(web.get("/", refuse)) as url, pytest.raises(RuntimeError, match=text):
        asyncio.run(measure_streams([url], [{}], 1, 0.1))


def test_a_stream_that_ends_is_no_open_one() -> None:
    async def end(_: web.Request) -> web.Response:
        return web.Response(content_type="text/event-stream", text=": end\n\n")

    with served(web.get("/", end)) as url, pytest.raises(RuntimeError, match="ended"):
        asyncio.run(measure_streams([url], [{}], 1, 0.5))


def test_usage_of_this_process() -> None:
    import os

    def work(_: float) -> None:
        end = cpu_seconds(os.getpid()) + 0.2
        while cpu_seconds(os.getpid()) < end:
            sum(range(10_000))

    found = usage_during(os.getpid(), 0.0, work)
    assert found.cores > 0.1
    assert 10 < found.resident_mb < 10_000
    with pytest.raises(OSError, match="No such file"):
        resident_mb(2**22 + 1)
