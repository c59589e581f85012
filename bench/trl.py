"""Benchmark against TRL's GRPOTrainer: wall clock time and samples to a fixed reward, on the same two cores.

    python -m bench.trl --task demo       one of the three tasks (demo, uneven, waiting); all of them without --task

Both sides have the same model, data, reward and hyperparameters (bench/tasks.py) and run one after another, in an order
that alternates between repetitions. This project runs as an RLRun on the local cluster, whose processes (API server,
etcd, kubelet) share the two cores. TRL is a single process. On both sides time starts with the first step and ends with
the step at which the mean reward of the last three steps reaches the target; a second figure includes start-up. Two
numbers of rollouts are compared: the rollouts trained on, and all drawn rollouts, because generating unused rollouts
costs the same.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bench import machine_load, trl_runs
from bench.cluster_runs import FAILURES, BenchmarkCluster, first_line
from bench.repetitions import WANTED, middle, paired_ratios
from bench.report import Result, at_least, at_most, record
from bench.reward_curves import Arrival, Trace, arrival, drawn_rollouts
from bench.tasks import TASKS, Task

SIDES = ("ours", "trl")
MINUTES = {"demo": 8, "uneven": 28, "waiting": 10}
"""Minutes of all repetitions on two cores, including the calibration of TRL's options."""


def main() -> int:
    """Run the benchmark. Returns 0 if both sides of every task reached the target."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.trl",
        description=(__doc__ or "").splitlines()[0],
        epilog="Expected minutes on two cores: " + ", ".join(f"{k} {v}" for k, v in MINUTES.items()) + ".",
    )
    parser.add_argument("--task", choices=sorted(TASKS), action="append", help="only this task; repeatable")
    parser.add_argument("--repeats", type=int, default=WANTED, help=f"repetitions of each side (default {WANTED})")
    machine_load.add_option(parser)
    args = parser.parse_args()
    machine_load.require_idle(args.busy)
    tasks = [TASKS[name] for name in args.task or MINUTES]
    cluster = BenchmarkCluster.ready(tasks)
    done = True
    for task in tasks:
        try:
            calibration = trl_runs.fastest(task)
        except trl_runs.TrlFailed as error:
            print(f"{task.name} was not measured: {error}", file=sys.stderr, flush=True)
            done = False
            continue
        traces, problems = measure(cluster, task, args.repeats, calibration.best)
        for result in results_of(task, traces, problems, calibration):
            record("trl", result)
            done = done and result.ratio is not None
    return 0 if done else 1


def measure(
    cluster: BenchmarkCluster, task: Task, repeats: int, options: trl_runs.TrlOptions
) -> tuple[dict[str, list[Trace]], list[str]]:
    """Return traces by side, and problems. A failed run does not stop the other runs."""
    traces: dict[str, list[Trace]] = {name: [] for name in SIDES}
    problems = []
    for seed in range(repeats):
        for side in SIDES if seed % 2 == 0 else SIDES[::-1]:
            before = {"cores_busy_before": machine_load.settled_load()}
            try:
                if side == "trl":
                    trace = trl_runs.run(task, seed, options)
                else:
                    trace = cluster.run(task, f"trl-{task.name}-{seed}", seed, target=task.target)
                traces[side].append(replace(trace, facts=trace.facts | before))
            except (*FAILURES, trl_runs.TrlFailed) as error:
                print(error, file=sys.stderr, flush=True)
                problems.append(f"{side}, seed {seed}: {first_line(error)}")
    return traces, problems


def results_of(
    task: Task, traces: Mapping[str, Sequence[Trace]], problems: Sequence[str], calibration: trl_runs.Calibration
) -> list[Result]:
    """Return three results of a task relative to TRL: the speed, the rollouts trained on, and the rollouts drawn."""
    reached = {
        side: {t.seed: (t, a) for t in found if (a := arrival(t.steps, task.target)) is not None}
        for side, found in traces.items()
    }
    missed = [
        f"{side}: {len(found) - len(reached[side])} of {len(found)} runs did not reach {task.target}"
        for side, found in traces.items()
        if len(reached[side]) < len(found)
    ]
    # A side that does not always reach the target has no typical time, because the runs that reached it are the lucky
    # ones.
    complete = not missed and all(traces.values())

    def numbers(of: Callable[[Trace, Arrival], float]) -> dict[str, dict[int, float]]:
        return {side: {seed: of(*pair) for seed, pair in found.items()} for side, found in reached.items()}

    def ratios(above: str, below: str, found: Mapping[str, Mapping[int, float]]) -> list[float]:
        return paired_ratios(found[above], found[below]) if complete else []

    seconds, trained = numbers(lambda _, a: a.seconds), numbers(lambda _, a: a.rollouts)
    drawn = numbers(lambda trace, a: drawn_rollouts(trace, a.rollouts, task.rollouts_per_example))
    whole = numbers(lambda trace, a: trace.startup_seconds + a.seconds)
    startup = {side: ", ".join(f"{t.startup_seconds:.0f}" for t in found) for side, found in traces.items()}
    stories = {
        side: " and ".join(
            f"{a.seconds:.0f} s ({a.steps} steps, {a.rollouts} rollouts trained on of {drawn[side][seed]:.0f} drawn)"
            for seed, (_, a) in found.items()
        )
        for side, found in reached.items()
    }
    notes = [
        f"ours {stories['ours'] or 'never reached it'}, TRL {stories['trl'] or 'never reached it'}; start-up, counted "
        f"in its own column: ours {startup['ours']} s (pods of trainer, engine and environment), TRL {startup['trl']} "
        "s (imports and model)",
        f"TRL generates with transformers ({calibration.best}, the fastest of what it offers without a GPU), alone on "
        "the two cores but for the idle cluster; ours shares them with its cluster",
    ]
    if task.waits:
        notes.append(
            "TRL's reward is an async function that waits for all rollouts of a step at once, the best it offers for "
            "slow rewards: its asynchronous trainer (experimental) needs a vLLM server on a GPU of its own"
        )
    all_traces = [trace for found in traces.values() for trace in found]
    versions = next((dict(trace.facts["versions"]) for trace in traces["trl"] if "versions" in trace.facts), {})
    busy = [t.facts["cores_busy_before"] for t in all_traces if "cores_busy_before" in t.facts]
    busy += calibration.cores_busy

    def rollouts(name: str, what: str, counts: Mapping[str, Mapping[int, float]]) -> Result:
        found = ratios("ours", "trl", counts)
        return Result(
            name=f"{task.name}, {name}",
            what=f"rollouts {what} to mean reward {task.target:g}: ours / TRL's",
            ratio=middle(found),
            aim=at_most(1.0),
            notes=[*problems, *missed],
            figures={side: list(values.values()) for side, values in counts.items()},
            versions=versions,
            repetitions=found,
            cores_busy=busy,
        )

    faster = ratios("trl", "ours", seconds)
    return [
        Result(
            name=task.name,
            what=f"wall clock to mean reward {task.target:g}: TRL's seconds / ours, {task.title}",
            ratio=middle(faster),
            aim=at_least(task.aim),
            unit="x as fast",
            samples=[trace.sample(side=side) for side, found in traces.items() for trace in found],
            notes=[*notes, *problems, *missed],
            figures={"target": task.target, "trl_options_tried": calibration.seconds},
            versions=versions,
            repetitions=faster,
            with_startup=middle(ratios("trl", "ours", whole)),
            cores_busy=busy,
        ),
        rollouts("samples", "trained on", trained),
        rollouts("samples drawn", "drawn", drawn),
    ]


if __name__ == "__main__":
    sys.exit(main())
