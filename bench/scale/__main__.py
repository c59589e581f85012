"""Benchmark of many runs on one operator: how fast they start, and what they cost while they train.

    python -m bench.scale                 100 runs and 400 finished ones, three times (about 20 minutes)
    python -m bench.scale --runs 20 --finished 0 --repeats 1

API server, etcd, controllers and scheduler are real, nodes and pods are KWOK's: a pod runs as soon as it has a node.
One process answers for all orchestrators. The operator runs from this checkout, with the chart's default settings. All
processes share this machine's cores. Results go to build/bench/scale.json, and with --copy to another file as well.
"""

import argparse
import shutil
import sys
from pathlib import Path

from bench import machine_load
from bench.repetitions import WANTED
from bench.report import record
from bench.scale import objects, scenarios
from bench.scale.cluster import ScaleCluster, wait_for
from bench.scale.results import MIB, WAITING_RUNS, Repetition, results_of

RUNS = 100
FINISHED = 400
STEP_SECONDS = 10.0
QUIET_SECONDS = 45.0


def main() -> int:
    """Run the benchmark. Returns 0 if it was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help=f"runs created at once ({RUNS})")
    parser.add_argument("--finished", type=int, default=FINISHED, help=f"finished runs beside them ({FINISHED})")
    parser.add_argument("--step-seconds", type=float, default=STEP_SECONDS, help=f"seconds of a step ({STEP_SECONDS})")
    parser.add_argument("--repeats", type=int, default=WANTED, help=f"repetitions ({WANTED})")
    parser.add_argument("--copy", type=Path, help="file for a copy of the results")
    machine_load.add_option(parser)
    args = parser.parse_args()
    machine_load.require_idle(args.busy)
    found, loads = [], []
    for number in range(args.repeats):
        loads.append(machine_load.settled_load())
        print(f"repetition {number + 1} of {args.repeats}", flush=True)
        found.append(one_repetition(args.runs, args.finished, args.step_seconds))
    for result in results_of(found, loads):
        file = record("scale", result)
    if args.copy:
        args.copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, args.copy)
    return 0


def one_repetition(runs: int, finished: int, step_seconds: float) -> Repetition:
    """Play all scenarios on a new cluster, the later ones beside the objects of the earlier ones."""
    with ScaleCluster() as cluster:
        operator = cluster.start_operator()
        wait_for("an operator that leads", operator.is_ready)
        print(f"{objects.PODS_PER_RUN * runs} pods of bare Jobs", flush=True)
        jobs_seconds = scenarios.burst_of_jobs(cluster, "jobs", objects.PODS_PER_RUN * runs)
        print(f"{runs} runs", flush=True)
        burst = scenarios.burst_of_runs(cluster, operator, "runs", runs)
        print(f"{QUIET_SECONDS:.0f} s without a step", flush=True)
        quiet = scenarios.rest(operator, QUIET_SECONDS)
        print(f"a step of each run every {step_seconds:g} s", flush=True)
        training = scenarios.training(cluster, operator, "runs", step_seconds, QUIET_SECONDS)
        after = scenarios.settled(operator)
        print(f"another operator takes over, with {finished} finished runs more", flush=True)
        objects.create_namespaces(cluster.api, "finished")
        objects.create_finished_runs(cluster.api, "finished", finished)
        operator, start = scenarios.take_over(cluster, operator, runs)
        # It looks at the finished runs one after the other.
        scenarios.settled(operator)
        print(f"{WAITING_RUNS} runs without a node", flush=True)
        cluster.set_schedulable(False)
        scenarios.burst_of_runs(cluster, operator, "waiting", WAITING_RUNS, "Pending")
        waiting = scenarios.rest(operator, QUIET_SECONDS)
        return Repetition(
            runs=runs,
            finished=finished,
            step_seconds=step_seconds,
            jobs_seconds=jobs_seconds,
            burst=burst,
            quiet=quiet,
            training=training,
            resident_mib=after.resident_bytes / MIB,
            cache_kib_per_run=after.cache_bytes / 2**10 / runs,
            start=start,
            waiting=waiting,
        )


if __name__ == "__main__":
    sys.exit(main())
