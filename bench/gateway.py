"""Benchmark of the rollout gateway: requests per second on one core, and latency added to a real engine.

    python -m bench.gateway                          both, with vLLM from the inference image (about 4 minutes)
    python -m bench.gateway --part throughput        only the first: a stub engine, no vLLM (half a minute)
    python -m bench.gateway --engine URL --model ID  latency with a running vLLM

Throughput: the gateway runs alone on one core. A stub engine, which responds immediately with 64 tokens, logprobs and
ids, and a client with 32 connections share another core. A round directly from client to engine shows that these two
are not the bottleneck. Latency: pairs of equal requests, one to the engine and one through the gateway, in alternating
order. The pairs are divided into rounds, and each round has a median.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from bench import machine_load, stub_engine
from bench.repetitions import middle
from bench.report import ROOT, Result, at_least, at_most, record

TOKENS = 64
CONNECTIONS = 32
ROUNDS = 7
ROUND_REQUESTS = 1500
WARM_UP = 300
PAIRS = 150
LATENCY_ROUNDS = 5
LATENCY_TOKENS = 16
ROLLOUT = "X_Rollout_Id"
REQUEST_SECONDS = 60.0
START_SECONDS = 300.0
MESSAGES = [{"role": "user", "content": "reverse the words of this text please"}]


def main() -> int:
    """Run the benchmark. Returns 0 if everything was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--part", choices=("throughput", "latency"), help="run only this part of the benchmark")
    parser.add_argument("--engine", help="base URL of a running vLLM, without /v1")
    parser.add_argument("--model", default="owner/tiny", help="name under which the engine serves its model")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="number of rounds for the throughput")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="number of request pairs for the latency")
    machine_load.add_option(parser)
    args = parser.parse_args()
    machine_load.require_idle(args.busy)
    if args.part != "latency":
        record("gateway", asyncio.run(measure_throughput(args.rounds)))
    if args.part != "throughput":
        with engine(args.engine) as url:
            record("gateway", asyncio.run(measure_latency(url, args.model, args.pairs)))
    return 0


@contextmanager
def gateway(engine_url: str, *options: str) -> Iterator[str]:
    """Run a gateway process in front of an engine and yield the base URL of its group."""
    command = [sys.executable, "-m", "bench.gateway_process", "--engine", engine_url, *options]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin
    assert process.stdout
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(30)


async def measure_throughput(rounds: int) -> Result:
    """Measure requests per second of the gateway on its own core."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    server, url = await stub_engine.upstream(TOKENS)
    try:
        with gateway(url, "--core", str(cores[0])) as base:
            place, direct = urlsplit(base), urlsplit(url)
            assert place.hostname
            assert place.port
            assert direct.port
            samples: list[dict[str, Any]] = []
            bare: list[float] = []
            busy: list[float] = []
            for number in range(-1, rounds):
                busy.append(await asyncio.to_thread(machine_load.settled_load))
                size = WARM_UP if number < 0 else ROUND_REQUESTS
                seconds, found = await stub_engine.throughput(
                    place.hostname, place.port, _requests(place.netloc, place.path, size, number), CONNECTIONS
                )
                if number < 0:
                    continue
                samples.append(
                    {"round": number, "requests": size, "seconds": seconds, "per_second": size / seconds}
                    | {"latency_p50_ms": 1000 * median(found), "latency_max_ms": 1000 * max(found)}
                )
                alone, _ = await stub_engine.throughput(
                    "127.0.0.1", direct.port, _requests(direct.netloc, "/v1", size, number), CONNECTIONS
                )
                bare.append(size / alone)
    finally:
        server.close()
        os.sched_setaffinity(0, cores)
    rates = [sample["per_second"] for sample in samples]
    notes = [
        f"client and stub engine alone, on their one core: {median(bare):.0f} req/s: the gateway is the bottleneck",
        *(["with fewer than two cores all three shared one"] if len(cores) < 2 else []),
    ]
    return Result(
        name="throughput",
        what=f"gateway on one core before an engine that answers at once with {TOKENS} tokens, logprobs and ids",
        ratio=median(rates),
        aim=at_least(300),
        unit="req/s",
        samples=samples,
        notes=notes,
        figures={"direct_per_second": bare},
        repetitions=rates,
        cores_busy=busy,
    )


def _requests(host: str, path: str, count: int, round_number: int) -> list[bytes]:
    body = {"model": "m", "messages": MESSAGES, "max_tokens": TOKENS, "temperature": 1.0}
    return [
        stub_engine.request(host, f"{path}/chat/completions", body, **{ROLLOUT: f"rollout-{(round_number, n % 200)}"})
        for n in range(count)
    ]


async def measure_latency(url: str, model: str, pairs: int) -> Result:
    """Measure the latency that the gateway adds to single requests: the median difference within pairs of equal
    requests.
    """
    direct_body = {
        "model": model, "messages": MESSAGES, "max_tokens": LATENCY_TOKENS, "min_tokens": LATENCY_TOKENS,
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "n": 1, "stream": False,
        "logprobs": True, "return_token_ids": True,
    }  # fmt: skip
    with gateway(url, "--model", model, "--tokens", str(LATENCY_TOKENS)) as base:
        ways: dict[str, tuple[tuple[str, int], bytes]] = {}
        clients: dict[str, stub_engine.Client] = {}
        for name, target, body in (
            ("direct", urlsplit(f"{url}/v1"), direct_body),
            ("gateway", urlsplit(base), {"model": model, "messages": MESSAGES, "max_tokens": LATENCY_TOKENS}),
        ):
            assert target.hostname
            assert target.port
            request = stub_engine.request(target.netloc, f"{target.path}/chat/completions", body)
            ways[name] = (target.hostname, target.port), request
        samples = []
        busy = []
        for number in range(-10, pairs):
            if number >= 0 and round_of(number, pairs) != round_of(number - 1, pairs):
                busy.append(await asyncio.to_thread(machine_load.settled_load))
            took = {}
            for name in ("direct", "gateway") if number % 2 else ("gateway", "direct"):
                address, request = ways[name]
                # The engine's server closes connections that are idle for some seconds.
                if name not in clients or clients[name].transport.is_closing():
                    clients[name] = await stub_engine.Client.connect(*address)
                began = time.perf_counter()
                status, answer = await asyncio.wait_for(clients[name].post(request), REQUEST_SECONDS)
                took[name] = 1000 * (time.perf_counter() - began)
                if status != 200:
                    raise RuntimeError(f"{name} returned {status}: {answer[:300]!r}")
            if number >= 0:
                both = {"direct_ms": took["direct"], "gateway_ms": took["gateway"]}
                samples.append({"pair": number, "round": round_of(number, pairs), **both})
    return latency_result(samples, busy)


def round_of(pair: int, pairs: int) -> int:
    """Return the round of a pair, or -1 for warm-up pairs, which are not counted."""
    return -1 if pair < 0 else pair * LATENCY_ROUNDS // pairs


def latency_result(samples: Sequence[Mapping[str, Any]], cores_busy: Sequence[float]) -> Result:
    """Return the median over the rounds of the median difference of their pairs."""
    medians = {name: median(sample[f"{name}_ms"] for sample in samples) for name in ("direct", "gateway")}
    rounds = [
        median(s["gateway_ms"] - s["direct_ms"] for s in samples if s["round"] == number)
        for number in sorted({s["round"] for s in samples})
    ]
    return Result(
        name="latency",
        what=f"added by the gateway to a chat with vLLM ({LATENCY_TOKENS} tokens), one request at a time",
        ratio=middle(rounds),
        aim=at_most(5),
        unit="ms p50",
        samples=samples,
        notes=[f"p50 directly {medians['direct']:.1f} ms, through the gateway {medians['gateway']:.1f} ms"],
        figures={"p50_ms": medians, "difference_of_medians_ms": medians["gateway"] - medians["direct"]},
        repetitions=rounds,
        cores_busy=cores_busy,
    )


@contextmanager
def engine(url: str | None) -> Iterator[str]:
    """Yield the URL of the given engine, or of a vLLM started from the inference image."""
    if url:
        yield url.rstrip("/")
        return
    from demo.install import CACHE

    folders = sorted((CACHE / "models").glob("reverse-text-tiny-*/model.safetensors"), key=lambda p: p.stat().st_mtime)
    if not folders:
        raise SystemExit("The model of the demo is missing. Run `make demo` once, or pass --engine.")
    port = 18080
    command = [
        sys.executable, "-m", "local_cluster.images", "run", "--volume", f"{folders[-1].parent}:/model:ro",
        "inference-cpu", "--", "vllm", "serve", "/model", "--served-model-name", "owner/tiny", "--host", "127.0.0.1",
        "--port", str(port), "--max-model-len", "128", "--dtype", "float32", "--enforce-eager",
        "--logprobs-mode", "processed_logprobs", "--kv-cache-memory-bytes", str(2**27),
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        _wait_until_healthy(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def _wait_until_healthy(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(f"{url}/health", timeout=2) as response:
                if response.status == 200:
                    return
        except OSError:
            time.sleep(1)
    raise SystemExit(f"vLLM at {url} exited or was not healthy within {START_SECONDS:.0f} s. See its log above.")


if __name__ == "__main__":
    sys.exit(main())
