"""Benchmark of a batch shared among the processes of the trainer: bytes received, CPU time and memory of each process.

    python -m bench.wire_ranks --in-image         two processes with gloo, inside the trainer's image
    python -m bench.wire_ranks                    the same, with this Python's torch

The first process has the batch as the server has read it, packs it, and sends the second process its columns.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time

from rlrun.protocol.train_batch import SampleHeader, read_sample, sample_columns
from rlrun_orchestrator.training.serialization import sample_of

from bench import machine_load, trainer_image
from bench.report import ROOT, Result, at_most, record
from bench.wire import LENGTH, SEQUENCES, peak_memory, sequences

RANKS = 2
BUDGET = 65_536
"""Maximum number of tokens of a micro-batch."""
SECONDS = 240
"""Time limit in seconds for the processes."""


def main() -> int:
    """Run the benchmark. Returns 0 if everything was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.wire_ranks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sequences", type=int, default=SEQUENCES)
    parser.add_argument("--length", type=int, default=LENGTH)
    trainer_image.add_options(parser)
    machine_load.add_option(parser)
    args = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(args.sequences, args.length)
        return 0
    if not args.emit:
        machine_load.require_idle(args.busy)
    if args.in_image:
        return trainer_image.run_in_image("wire", "bench.wire_ranks", sys.argv[1:])
    busy = [machine_load.settled_load()]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    command = [sys.executable, "-m", "bench.wire_ranks", *sys.argv[1:]]
    environment = {**os.environ, **place, "WORLD_SIZE": str(RANKS)}
    ranks = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=environment | {"RANK": str(rank)})
        for rank in range(RANKS)
    ]
    try:
        printed = [process.communicate(timeout=SECONDS)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    if any(process.returncode for process in ranks):
        raise SystemExit(f"Not measured: the processes ended with {[process.returncode for process in ranks]}.")
    found = [json.loads(each) for each in printed]
    what = f"{args.sequences} sequences of {args.length} tokens among {RANKS} processes of the trainer"
    whole = found[0]["whole"]
    figures = {"ranks": found}
    most = {key: max(rank[key] for rank in found) for key in ("own", "memory", "cpu_seconds")}
    for name, text, value, aim, unit in (
        ("bytes of a rank", "most columns of one process / those of the batch", most["own"] / whole, 0.55, "x"),
        ("memory of a rank", "most that sharing adds to a process / the batch", most["memory"] / whole, 2, "x"),
        ("CPU of a rank", "most that packing and sharing take", most["cpu_seconds"], 0.5, "s"),
    ):
        result = Result(name, f"{what}: {text}", value, at_most(aim), unit, figures=figures, cores_busy=busy)
        trainer_image.emit(result) if args.emit else record("wire", result)
    return 0


def run_rank(count: int, length: int) -> None:
    """Take part as one process of the trainer. Prints the bytes received, the memory and the CPU seconds as JSON."""
    # torch is only in the trainer's image.
    from rlrun_trainer.optimization.batch_share import share_batch
    from rlrun_trainer.optimization.packing import pack
    from rlrun_trainer.runtime.process_group import init_process_group

    world = init_process_group("cpu")
    samples = []
    if world.is_leader:
        for sequence in sequences(count, length):
            sample = sample_of(sequence, 1, advantage=0.25)
            samples.append(read_sample(SampleHeader.of(sample), b"".join(sample_columns(sample))))
        del sequence, sample
    before, cpu = peak_memory(), time.process_time()
    layouts = pack(samples, BUDGET, True, RANKS) if world.is_leader else []
    share = share_batch(world, samples, layouts)
    spent = time.process_time() - cpu
    peak = peak_memory()
    own = [sample for rows in share.micro_batches for row in rows for sample in row]
    print(
        json.dumps(
            {
                "own": sum(SampleHeader.of(sample).size for sample in own),
                "whole": sum(SampleHeader.of(sample).size for sample in samples),
                "memory": peak - before,
                "cpu_seconds": spent,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
