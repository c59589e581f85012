"""Benchmark against TRL's GRPOTrainer: wall clock and samples to a fixed reward, on the same two cores.

    python -m bench.trl --task demo       one of the three tasks (demo, uneven, waiting); all of them without --task

Both sides have the same model, data, reward and hyper-parameters (bench/tasks.py) and run one after the other, in an
order that alternates between repetitions. This project runs as an RLRun on the local cluster, whose processes (API
server, etcd, kubelet) share the two cores. TRL is a single process. On both sides time begins with the first step and
ends with the step at which the mean reward of the last three steps reaches the target; start-up is reported separately.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from bench import trl_runs
from bench.cluster_runs import FAILURES, BenchmarkCluster, first_line
from bench.report import Result, at_least, at_most, record
from bench.reward_curves import Arrival, Trace, arrival
from bench.tasks import TASKS, Task

SIDES = ("ours", "trl")
WORTH_NAMING = 0.01
"""CPU seconds per step below which the notes omit a part of the cluster."""
REPEATS = {"demo": 2, "uneven": 1, "waiting": 2}
MINUTES = {"demo": 6, "uneven": 12, "waiting": 7}
"""Minutes of all repetitions on two cores."""
IDLE_SECONDS = 3.0

Say = Callable[[str], None]


def main() -> int:
    """Run the benchmark. Returns 0 if both sides of every task reached the target."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.trl",
        description=(__doc__ or "").splitlines()[0],
        epilog="Expected minutes on two cores: " + ", ".join(f"{k} {v}" for k, v in MINUTES.items()) + ".",
    )
    parser.add_argument("--task", choices=sorted(TASKS), action="append", help="only this one; repeatable")
    parser.add_argument("--repeats", type=int, help=f"repetitions of each side (default {REPEATS})")
    parser.add_argument("--target", type=float, help="another mean reward to reach")
    parser.add_argument("--threads", type=int, help="torch threads of TRL (default: the fastest number)")
    parser.add_argument("--side", choices=SIDES, help="only this side, and nothing is recorded")
    args = parser.parse_args()
    tasks = [TASKS[name] for name in args.task or ("demo", "waiting", "uneven")]
    if args.target is not None:
        tasks = [replace(task, target=args.target) for task in tasks]
    cluster = BenchmarkCluster.ready(tasks) if args.side != "trl" else None
    done = True
    fastest: dict[str, tuple[trl_runs.Options, dict[str, float]]] = {}
    tried: dict[str, float] = {}
    for task in tasks:
        if args.threads or args.side == "ours":
            options = trl_runs.Options(args.threads or trl_runs.CORES)
        else:
            # Tasks of one model differ only in the reward, which does not depend on the options.
            if task.model.id not in fastest:
                fastest[task.model.id] = trl_runs.fastest(task)
            options, tried = fastest[task.model.id]
        traces, problems = measure(cluster, task, args.repeats or REPEATS[task.name], options, args.side)
        if args.side:
            continue
        for result in results_of(task, traces["ours"], traces["trl"], problems, tried):
            record("trl", result)
            done = done and result.ratio is not None
    return 0 if done else 1


def measure(
    cluster: BenchmarkCluster | None, task: Task, repeats: int, options: trl_runs.Options, side: str | None
) -> tuple[dict[str, list[Trace]], list[str]]:
    """Return traces by side, and problems. A failed run does not end the others."""
    traces: dict[str, list[Trace]] = {name: [] for name in SIDES}
    problems = []
    for seed in range(repeats):
        for name in SIDES if seed % 2 == 0 else SIDES[::-1]:
            if side not in (None, name):
                continue
            try:
                if name == "trl":
                    idle = idle_cores()
                    trace = trl_runs.run(task, seed, options)
                    traces[name].append(replace(trace, facts=trace.facts | {"cores_busy_before": idle}))
                elif cluster is not None:
                    trace, run = cluster.run(task, f"trl-{task.name}-{seed}", seed, target=task.target)
                    groups = run.get("status", {}).get("groups", {})
                    traces[name].append(replace(trace, facts=trace.facts | {"groups": groups}))
            except (*FAILURES, trl_runs.TrlFailed) as error:
                print(error, file=sys.stderr, flush=True)
                problems.append(f"{name}, seed {seed}: {first_line(error)}")
    return traces, problems


def results_of(
    task: Task,
    ours: Sequence[Trace],
    theirs: Sequence[Trace],
    problems: Sequence[str],
    tried: Mapping[str, float] | None = None,
) -> list[Result]:
    """Return two results of a task: the speed, and the number of rollouts, both relative to TRL."""
    arrivals = {"ours": _arrivals(ours, task.target), "trl": _arrivals(theirs, task.target)}
    missed = [
        f"{side}: {len(found) - sum(a is not None for a in found)} of {len(found)} runs did not reach {task.target}"
        for side, found in arrivals.items()
        if None in found
    ]
    seconds, rollouts = _ratio(arrivals, lambda a: a.seconds), _ratio(arrivals, lambda a: float(a.rollouts))
    samples = [trace.sample(side="ours", seed=i) for i, trace in enumerate(ours)]
    samples += [trace.sample(side="trl", seed=i) for i, trace in enumerate(theirs)]
    versions = next((dict(trace.facts["versions"]) for trace in theirs if "versions" in trace.facts), {})
    figures: dict[str, Any] = {
        "target": task.target,
        "trl_options": next((trace.facts.get("options") for trace in theirs), None),
        "trl_options_tried": dict(tried or {}),
        "steps": {side: [a and a.steps for a in found] for side, found in arrivals.items()},
        "seconds": {side: [a and a.seconds for a in found] for side, found in arrivals.items()},
        "rollouts": {side: [a and a.rollouts for a in found] for side, found in arrivals.items()},
        "startup_seconds": {"ours": [t.startup_seconds for t in ours], "trl": [t.startup_seconds for t in theirs]},
        "seconds_per_step": {"ours": _per_step(ours), "trl": _per_step(theirs)},
        "cpu_seconds_per_step": _cpu_seconds(ours),
    }
    notes = [*_story(task, arrivals, figures), *problems, *missed]
    return [
        Result(
            name=task.name,
            what=f"wall clock to mean reward {task.target:g}: TRL's seconds / ours, {task.title}",
            ratio=seconds and seconds[1] / seconds[0],
            aim=at_least(task.aim),
            unit="x as fast",
            samples=samples,
            notes=notes,
            figures=figures,
            versions=versions,
        ),
        Result(
            name=f"{task.name}, samples",
            what=f"rollouts trained on to mean reward {task.target:g}: ours / TRL's",
            ratio=rollouts and rollouts[0] / rollouts[1],
            aim=at_most(1.0),
            samples=[{"side": s, "rollouts": a and a.rollouts} for s, found in arrivals.items() for a in found],
            notes=[*problems, *missed],
            versions=versions,
        ),
    ]


def idle_cores(seconds: float = IDLE_SECONDS) -> float:
    """Return the number of busy cores while the cluster is idle."""

    def busy() -> float:
        ticks = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return (sum(ticks[:8]) - ticks[3] - ticks[4]) / 100

    before, began = busy(), time.monotonic()
    time.sleep(seconds)
    return (busy() - before) / (time.monotonic() - began)


def _arrivals(traces: Sequence[Trace], target: float) -> list[Arrival | None]:
    return [arrival(trace.steps, target) for trace in traces]


def _ratio(arrivals: dict[str, list[Arrival | None]], what: Callable[[Arrival], float]) -> tuple[float, float] | None:
    """Return medians (ours, TRL's) over the repetitions; None unless every run reached the target."""
    if not all(arrivals.values()) or any(a is None for found in arrivals.values() for a in found):
        return None
    ours, theirs = (median(what(a) for a in arrivals[side] if a) for side in SIDES)
    return ours, theirs


def _per_step(traces: Sequence[Trace]) -> list[float]:
    return [trace.steps[-1].seconds / len(trace.steps) for trace in traces if trace.steps]


def _cpu_seconds(traces: Sequence[Trace]) -> dict[str, float]:
    """Return means over the runs with readings, by part of the cluster, largest first."""
    readings = [found for trace in traces if (found := trace.facts.get("cpu_seconds_per_step"))]
    means = {p: sum(r.get(p, 0.0) for r in readings) / len(readings) for p in {p for r in readings for p in r}}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def _story(task: Task, arrivals: dict[str, list[Arrival | None]], figures: dict[str, Any]) -> list[str]:
    def shown(side: str) -> str:
        found = [a for a in arrivals[side] if a]
        if not found:
            return "never reached it"
        return " and ".join(f"{a.seconds:.0f} s ({a.steps} steps, {a.rollouts} rollouts)" for a in found)

    startup = {side: ", ".join(f"{s:.0f}" for s in values) for side, values in figures["startup_seconds"].items()}
    notes = [
        f"ours {shown('ours')}, TRL {shown('trl')}; start-up, which does not count: ours {startup['ours']} s (pods of "
        f"trainer, engine and environment), TRL {startup['trl']} s (imports and model)",
        f"TRL generates with transformers ({figures['trl_options']}, the fastest of what it offers without a GPU), "
        "alone on the two cores but for the idle cluster; ours shares them with its cluster",
    ]
    if shares := figures["cpu_seconds_per_step"]:
        parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in shares.items() if seconds >= WORTH_NAMING)
        notes.append(f"CPU seconds that a step of ours takes: {parts}")
    if task.waits:
        notes.append(
            "TRL's reward is an async function that waits for all rollouts of a step at once, the best it offers for "
            "slow rewards: its asynchronous trainer (experimental) needs a vLLM server on a GPU of its own"
        )
    return [*notes, *task.notes]


if __name__ == "__main__":
    sys.exit(main())
