"""Benchmark of a batch on its way from the orchestrator to the trainer: bytes, CPU time, stalls and memory.

    python -m bench.wire                          512 sequences of 32,768 tokens, and smaller batches
    python -m bench.wire --sequences 64           64 sequences
    python -m bench.wire_ranks --in-image         the same batch among two processes of the trainer

The orchestrator hashes and sends the batch from the process that runs the gateway; the trainer reads and checks it in
another process. The batch is sent twice: alone, for CPU time and memory; and beside a client that sends the gateway a
request every 20 ms, with a stub engine that responds at once, for the longest stall of the event loop and the latency.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from rlrun.protocol.policy import PolicyRef
from rlrun.protocol.trainer import StepResult
from rlrun.service.server import LimitedRunner, read_batch
from rlrun_orchestrator.data.trajectories import SampledSpan, TokenSequence
from rlrun_orchestrator.training.batch import Batch
from rlrun_orchestrator.training.serialization import sample_of
from rlrun_orchestrator.training.trainer_client import TrainerClient
from rlrun_trainer.sessions.batch_validation import check_batch

from bench import gateway_process, machine_load, stub_engine
from bench.report import ROOT, Result, at_most, record

SEQUENCES, LENGTH, VOCABULARY = 512, 32_768, 151_936
PROMPT, TURN = 100, 2048
"""Number of tokens of a sequence's prompt, and of each of its turns. A turn includes the tokens that the environment
adds.
"""
ADDED = 64
"""Tokens that the environment adds to each turn."""
PAUSE_SECONDS = 0.02
"""Pause between two requests to the gateway."""
TICK_SECONDS = 0.001
STEP_SECONDS = 1800.0
TOKENS = 16
BEFORE = (
    "JSON batches at e14fb85c, once and on a busy host: 31.1 bytes/token, 11.3 s CPU to encode and 4.2 s to read and "
    "check 512 sequences of 32768 tokens, a stall of 1.9 s for 24 of them, 3.1 times the batch in memory to encode and "
    "4.9 times to read; each process of the trainer received all of it"
)
"""Note in the row with the size of a batch."""
POLICY = PolicyRef(version=1, digest="0" * 64, uri="s3://bench/policy")


def main() -> int:
    """Run the benchmark. Returns 0 if everything was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.wire", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sequences", type=int, default=SEQUENCES)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--role", choices=("trainer", "client"), help="run as one of the other processes")
    machine_load.add_option(parser)
    args = parser.parse_args()
    if args.role == "trainer":
        asyncio.run(serve_trainer())
    elif args.role == "client":
        asyncio.run(run_client())
    else:
        machine_load.require_idle(args.busy)
        for result in asyncio.run(measure(args.sequences, args.length)):
            record("wire", result)
    return 0


def sequences(count: int, length: int) -> list[TokenSequence]:
    """Return sequences of many turns with random tokens. Sequences share no arrays."""
    rng = random.Random(0)
    ids = [array("i", rng.choices(range(VOCABULARY), k=length)) for _ in range(4)]
    logprobs = array("f", [-rng.random() for _ in range(length)])
    starts = range(PROMPT, length, TURN)
    spans = [SampledSpan(start, min(start + TURN - ADDED, length), 1) for start in starts]
    return [TokenSequence(ids[i % 4][:], logprobs[:], list(spans)) for i in range(count)]


async def measure(count: int, length: int) -> list[Result]:
    """Send the batch alone and beside the gateway, and return all results."""
    busy = [await asyncio.to_thread(machine_load.settled_load)]
    before = peak_memory()
    made = sequences(count, length)
    tokens = count * length
    async with _child("trainer") as trainer, aiohttp.ClientSession() as http:
        url = (await trainer())["url"]
        client = TrainerClient(http, url, "bench", "bench")
        alone = await _send(client, made)
        memory = (peak_memory() - before) / alone["bytes"]
        async with _child("client") as load:
            base = (await load())["url"]
            async with _gateway(base) as gateway:
                await load({"url": gateway})
                beside = await _send(client, made)
                latencies = (await load({"url": None}))["latencies"]
    meanwhile = sorted(seconds for at, seconds in latencies if beside["began"] <= at <= beside["ended"])
    p99 = meanwhile[int(0.99 * (len(meanwhile) - 1))] if meanwhile else float("nan")
    figures = {"alone": alone, "beside": beside, "requests": len(meanwhile)}
    what = f"{count} sequences of {length} tokens from the orchestrator to the trainer"

    def result(name: str, text: str, value: float, aim: float, unit: str) -> Result:
        notes = [BEFORE] if name == "bytes" else []
        return Result(name, f"{what}: {text}", value, at_most(aim), unit, notes=notes, figures=figures, cores_busy=busy)

    cpu = alone["cpu_seconds"], alone["trainer"]["wire/cpu_seconds"]
    return [
        result("bytes", "size of the batch", alone["bytes"] / tokens, 8.5, "bytes/token"),
        result("CPU of the orchestrator", "hash and send", cpu[0], 0.5, "s"),
        result("CPU of the trainer", "read and check", cpu[1], 0.5, "s"),
        result("stall", "longest stall of the orchestrator's event loop meanwhile", 1e3 * beside["stall"], 50, "ms"),
        result("gateway", "latency of the gateway meanwhile", 1e3 * p99, 20, "ms p99"),
        result("memory of the orchestrator", "sequences and batch / size of the batch", memory, 2, "x"),
        result(
            "memory of the trainer", "what reading adds / size of the batch", alone["trainer"]["wire/memory"], 2, "x"
        ),
    ]


async def _send(client: TrainerClient, made: list[TokenSequence]) -> dict[str, Any]:
    stalls: list[float] = []

    async def tick() -> None:
        while True:
            last = time.perf_counter()
            await asyncio.sleep(TICK_SECONDS)
            stalls.append(time.perf_counter() - last - TICK_SECONDS)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.2)
    stalls.clear()
    began, cpu = time.monotonic(), time.process_time()
    samples = [sample_of(sequence, 1, advantage=0.25) for sequence in made]
    batch = await asyncio.to_thread(Batch(0, samples, [], 0).finalize)
    assert batch.body is not None
    answer = await client.step(0, batch.body, STEP_SECONDS)
    ended, spent = time.monotonic(), time.process_time() - cpu
    ticking.cancel()
    return {
        "began": began,
        "ended": ended,
        "seconds": ended - began,
        "cpu_seconds": spent,
        "stall": max(stalls),
        "bytes": batch.body.size,
        "trainer": answer.metrics,
    }


@asynccontextmanager
async def _gateway(engine: str) -> AsyncIterator[str]:
    """Serve a gateway in this process in front of the engine at the URL `engine`. Yields the base URL of its group."""
    async with gateway_process.gateway(engine, "stub", TOKENS) as url:
        yield url


@asynccontextmanager
async def _child(role: str) -> AsyncIterator[Callable[..., Any]]:
    """Run this program in the given role as a subprocess. Yields a function that sends its argument as a line of JSON,
    if there is one, and returns the next line of the subprocess.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.wire", "--role", role, cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=2**26,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    output = process.stdout

    async def ask(value: Any = None) -> Any:
        if value is not None:
            assert process.stdin
            process.stdin.write(json.dumps(value).encode() + b"\n")
        return json.loads(await output.readline())

    try:
        yield ask
    finally:
        process.stdin.close()
        await process.wait()


async def serve_trainer() -> None:
    """Read and check batches as the trainer does, until standard input ends."""
    from rlrun_trainer.optimization.column_checks import check_columns

    async def step(request: web.Request) -> web.Response:
        memory, cpu = peak_memory(), time.process_time()
        batch = await read_batch(request)
        check_batch(batch.samples, 2**20)
        await asyncio.to_thread(check_columns, batch.samples, VOCABULARY)
        spent = {"wire/cpu_seconds": time.process_time() - cpu}
        size = request.content_length or 1
        metrics = spent | {"wire/memory": (peak_memory() - memory) / size}
        result = StepResult(step=1, policy=POLICY, metrics=metrics, batch_id=batch.batch_id)
        return web.json_response(result.to_json_dict())

    app = web.Application()
    app.router.add_post("/sessions/{session}/steps/{step}", step)
    runner = LimitedRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps({"url": f"http://127.0.0.1:{runner.addresses[0][1]}"}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


async def run_client() -> None:
    """Act as the engine, and send requests to the gateway until told to stop. Prints the latencies in seconds."""
    server, url = await stub_engine.upstream(TOKENS)
    print(json.dumps({"url": url}), flush=True)
    target = urlsplit(json.loads(await asyncio.to_thread(sys.stdin.readline))["url"])
    print("{}", flush=True)
    assert target.hostname
    assert target.port
    client = await stub_engine.Client.connect(target.hostname, target.port)
    stop = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    found: list[tuple[float, float]] = []
    body = {"model": "m", "messages": [{"role": "user", "content": "reverse this"}], "max_tokens": TOKENS}
    while not stop.done():
        request = stub_engine.request(
            target.netloc, f"{target.path}/chat/completions", body, X_Rollout_Id=str(len(found))
        )
        at = time.monotonic()
        status, answer = await client.post(request)
        if status != 200:
            raise SystemExit(f"the gateway answered {status}: {answer[:200]!r}")
        found.append((at, time.monotonic() - at))
        await asyncio.sleep(PAUSE_SECONDS)
    print(json.dumps({"latencies": found}), flush=True)
    server.close()


def peak_memory() -> int:
    """Return the peak of this process's resident memory in bytes. `ru_maxrss` also counts the parent before exec."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:", 1)[1].split()[0])


if __name__ == "__main__":
    sys.exit(main())
