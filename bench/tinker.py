"""Benchmark of clients' programs: latency of calls to a shared pool's trainer, and hourly updates of eight programs.

    python -m bench.tinker --in-image            inside the trainer's image, which has torch
    python -m bench.tinker                       with this Python's torch

The trainer and an S3 server are real processes of this machine, the programs are threads that send commands as
rlrun-tinker does. An update is a `forward_backward` of 64 datums of 64 tokens and an `optim_step`.
"""

import argparse
import hashlib
import http.client
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from rlrun.protocol.shared_pool import TrainedRun, TrainerOrder

from bench import machine_load, trainer_image
from bench.repetitions import middle, paired_ratios, percentile
from bench.report import Result, at_least, at_most, machine, record
from tests.support import client_commands, trainer_requests
from tests.support.ports import claimed_ports
from tests.support.seaweedfs import S3Server, running
from tests.support.trainer_process import ready, start

REPEATS, CALLS, UPDATES, CLIENTS = 3, 100, 20, 8
DATUMS, TOKENS = 64, 64
PAUSE_SECONDS = 0.5
"""Time for which a program computes rewards between two updates."""
COMMANDS = ("forward_backward", "optim_step")
VOCABULARY = 30
TITLE = "0.45 M parameters"

Seconds = Sequence[float]
"""Durations of the commands of an update."""


class Program:
    """Client's program with one connection."""

    def __init__(self, port: int, uid: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._uid, self._number = uid, 0
        texts = [[(7 * datum + token) % VOCABULARY for token in range(TOKENS)] for datum in range(DATUMS)]
        self._commands = client_commands.forward_backward(*texts), client_commands.optim_step()

    def update(self) -> Seconds:
        """Make an update. `optim_step` is sent after the result of `forward_backward` has arrived."""
        return [self._call(body) for body in self._commands]

    def train(self, updates: int) -> None:
        """Make updates, with a pause after each."""
        for _ in range(updates):
            self.update()
            time.sleep(PAUSE_SECONDS)

    def _call(self, body: bytes) -> float:
        """Return the seconds until the result. Raises RuntimeError."""
        began = time.perf_counter()
        self._number += 1
        self._request("POST", f"commands/{self._number}", body)
        while (result := self._request("GET", f"results/{self._number}?wait=30")) is None:
            continue
        seconds = time.perf_counter() - began
        if error := client_commands.read_result(result)[0].error:
            raise RuntimeError(f"call {self._number}: {error.message}")
        return seconds

    def _request(self, method: str, path: str, body: bytes | None = None) -> bytes | None:
        """Return the body of a response with status 200."""
        headers = {"Authorization": f"Bearer {self._uid}"}
        self._connection.request(method, f"/sessions/{self._uid}/{path}", body, headers)
        response = self._connection.getresponse()
        data = response.read()
        if response.status not in (200, 202):
            raise RuntimeError(f"{method} {path}: {response.status} {data[:300]!r}")
        return data if response.status == 200 else None


def main() -> int:
    """Run the benchmark. Returns 0 if everything was measured."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.tinker",
        description=(__doc__ or "").splitlines()[0],
        epilog="Expected minutes: 6 on two cores.",
    )
    trainer_image.add_options(parser)
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"repetitions ({REPEATS})")
    parser.add_argument("--calls", type=int, default=CALLS, help=f"timed updates of a repetition ({CALLS})")
    parser.add_argument("--updates", type=int, default=UPDATES, help=f"updates of each of the clients ({UPDATES})")
    machine_load.add_option(parser)
    args = parser.parse_args()
    if not args.emit:
        machine_load.require_idle(args.busy)
    if args.in_image:
        return trainer_image.run_in_image("tinker", "bench.tinker", sys.argv[1:])
    out = trainer_image.emit if args.emit else partial(record, "tinker")
    for result in measure(args.repeats, args.calls, args.updates):
        out(result)
    return 0


def measure(repeats: int, calls: int, updates: int) -> list[Result]:
    """Measure the latency of a single client. Then measure all clients at once and one after another, in alternating
    order.
    """
    latencies: list[list[Seconds]] = []
    rates: tuple[dict[int, float], dict[int, float]] = {}, {}
    busy = []
    with trainer() as port:
        programs = [Program(port, f"client-{number}") for number in range(CLIENTS)]
        for program in programs:
            program.update()  # waits for the session, and is not counted
        for repetition in range(repeats):
            busy.append(machine_load.settled_load())
            latencies.append([programs[0].update() for _ in range(calls)])
            for way in (1, 0) if repetition % 2 else (0, 1):
                began = time.perf_counter()
                with ThreadPoolExecutor(1 if way else len(programs)) as threads:
                    list(threads.map(lambda program: program.train(updates), programs))
                rates[way][repetition] = 3600 * len(programs) * updates / (time.perf_counter() - began)
    return results_of(latencies, rates, busy)


def results_of(
    latencies: Sequence[Sequence[Seconds]], rates: Sequence[Mapping[int, float]], busy: Sequence[float]
) -> list[Result]:
    """Return the rows. `rates` are the updates per hour by repetition, first at once and then one after another."""
    versions = machine(packages=("torch", "transformers"))["versions"]

    def quantiles(percent: float, *commands: int) -> list[float]:
        """Return quantiles in milliseconds of the total duration of these commands, by repetition."""
        return [1000 * percentile([sum(made[at] for at in commands) for made in each], percent) for each in latencies]

    def latency(percent: int, limit: float) -> Result:
        found, parts = quantiles(percent, 0, 1), {name: quantiles(percent, at) for at, name in enumerate(COMMANDS)}
        return Result(
            f"latency p{percent}",
            f"forward_backward of {DATUMS} datums of {TOKENS} tokens, then optim_step, one client, {TITLE}",
            middle(found),
            at_most(limit),
            f"ms p{percent}",
            samples=[{"ms": [1000 * sum(made) for made in each]} for each in latencies],
            notes=[", ".join(f"{name} {median(ms):.3g} ms p{percent}" for name, ms in parts.items())],
            versions=versions,
            repetitions=found,
            cores_busy=busy,
        )

    (at_once, in_turn), ratios = rates, paired_ratios(*rates)
    clients = Result(
        f"{CLIENTS} clients",
        f"updates per hour: {CLIENTS} clients at once / one after another, each with {PAUSE_SECONDS:g} s between its "
        f"updates, {TITLE}",
        middle(ratios),
        at_least(3.0),
        samples=[{"at_once": at_once[at], "in_turn": in_turn[at]} for at in at_once],
        notes=[f"updates per hour: at once {median(at_once.values()):.0f}, in turn {median(in_turn.values()):.0f}"],
        versions=versions,
        repetitions=ratios,
        cores_busy=busy,
    )
    return [latency(50, 80.0), latency(95, 200.0), clients]


@contextmanager
def trainer() -> Iterator[int]:
    """Run the trainer of a shared pool, with one thread per core and a run for each client. Yields the trainer's
    port.
    """
    from bench.trainer_batches import SHAPES

    with tempfile.TemporaryDirectory() as name, running(Path(name) / "s3") as s3, claimed_ports(1) as [port]:
        order, model = Path(name) / "order.json", Path(name) / "model"
        order.write_text(order_of(s3).model_dump_json(by_alias=True))
        variables = {"RLRUN_TOKEN": "of the pool", "RLRUN_ORDER_PATH": str(order), "RLRUN_SLOTS": str(CLIENTS)}
        # Nobody reads the log. An empty number of threads is one for each core.
        variables |= s3.environment | {"RLRUN_LOG_LEVEL": "WARNING", "RLRUN_THREADS": ""}
        process = start("rlrun_trainer", SHAPES["tiny"].save(model), port, variables)
        with ready(process, port):
            yield port


def order_of(s3: S3Server) -> TrainerOrder:
    """Return the order with one run for each client. The run's uid is its token."""
    runs = []
    for uid in (f"client-{number}" for number in range(CLIENTS)):
        folder = f"s3://{s3.bucket}/{uid}"
        spec = trainer_requests.spec(folder, uid, lora={"rank": 16}, lora_alpha=32.0, micro_batch_tokens=8192)
        digest = hashlib.sha256(uid.encode()).hexdigest()
        runs.append(TrainedRun(uid=uid, token_digest=digest, folder=folder, keep_policies=2, client=spec))
    return TrainerOrder(runs=runs)


if __name__ == "__main__":
    sys.exit(main())
