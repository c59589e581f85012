"""Benchmark of asynchrony: steps per hour and reward, `maxAsyncLevel` 2 (oversampling 2) against 0 (oversampling 1).

    python -m bench.async_levels --task waiting      one of the two tasks (waiting, demo); both without --task

Level 0 is strictly on-policy: generation and training alternate. Level 2 generates during training, with policies up
to two steps old. Both make the same number of steps with the same seed and must reach the same reward, because a faster
step that teaches less is not a gain. The first step fills the pipeline and does not count.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from bench.cluster_runs import FAILURES, BenchmarkCluster, first_line
from bench.report import Result, Target, at_least, record
from bench.reward_curves import Trace, arrival, steps_per_hour
from bench.tasks import TASKS, Task

LEVELS: dict[int, dict[str, Any]] = {
    0: {"maxAsyncLevel": 0, "oversamplingFactor": 1.0},
    2: {"maxAsyncLevel": 2, "oversamplingFactor": 2.0},
}
TARGETS = {"waiting": at_least(2.0), "demo": at_least(1.0)}
STEPS = {"waiting": 20, "demo": 30}
MINUTES = {"waiting": 6, "demo": 4}
"""Minutes of one repetition on two cores."""
TAIL = 8
"""Number of steps at the end whose rewards are compared."""
EQUAL = 0.05
"""Rewards that differ by less count as equal: two seeds of the same setting differ by about this much."""


def main() -> int:
    """Run the benchmark. Returns 0 if everything was measured."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.async_levels",
        description=(__doc__ or "").splitlines()[0],
        epilog="Expected minutes on two cores: " + ", ".join(f"{k} {v}" for k, v in MINUTES.items()) + ".",
    )
    parser.add_argument("--task", choices=sorted(TARGETS), action="append", help="only this one; repeatable")
    parser.add_argument("--repeats", type=int, default=1, help="repetitions of each level (default 1)")
    parser.add_argument("--steps", type=int, help=f"steps of each run (default {STEPS})")
    args = parser.parse_args()
    tasks = [replace(TASKS[name], max_steps=args.steps or STEPS[name]) for name in args.task or ("waiting", "demo")]
    cluster = BenchmarkCluster.ready(tasks)
    done = True
    for task in tasks:
        traces, problems = measure(cluster, task, args.repeats)
        for result in results_of(task, TARGETS[task.name], traces, problems):
            record("async", result)
            done = done and result.ratio is not None
    return 0 if done else 1


def measure(cluster: BenchmarkCluster, task: Task, repeats: int) -> tuple[dict[int, list[Trace]], list[str]]:
    """Return traces by level, with the order reversed at each repetition, and problems."""
    traces: dict[int, list[Trace]] = {level: [] for level in LEVELS}
    problems = []
    for seed in range(repeats):
        for level in sorted(LEVELS, reverse=seed % 2 == 1):
            try:
                name = f"async-{task.name}-{level}-{seed}"
                trace, run = cluster.run(task, name, seed, target=None, **LEVELS[level])
                groups = run.get("status", {}).get("groups", {})
                traces[level].append(replace(trace, facts=trace.facts | {"groups": groups}))
            except FAILURES as error:
                print(error, file=sys.stderr, flush=True)
                problems.append(f"level {level}, seed {seed}: {first_line(error)}")
    return traces, problems


def results_of(task: Task, aim: Target, traces: dict[int, list[Trace]], problems: Sequence[str]) -> list[Result]:
    """Return two results of a task: the ratio of steps per hour and the difference of rewards."""
    rates = {level: [r for t in found if (r := steps_per_hour(t.steps)) is not None] for level, found in traces.items()}
    tails = {level: [fmean(s.reward for s in t.steps[-TAIL:]) for t in found] for level, found in traces.items()}
    complete = all(rates.values())
    arrivals = {level: [arrival(t.steps, task.target) for t in found] for level, found in traces.items()}
    figures = {
        "steps_per_hour": {str(level): found for level, found in rates.items()},
        "reward_at_the_end": {str(level): found for level, found in tails.items()},
        "seconds_to_target": {str(level): [a and a.seconds for a in found] for level, found in arrivals.items()},
        "target": task.target,
    }
    samples = [t.sample(level=level, seed=i) for level, found in traces.items() for i, t in enumerate(found)]
    story = [
        f"level {level}: {median(rates[level]):.0f} steps per hour, reward {median(tails[level]):.3f} at the end"
        for level in LEVELS
        if rates[level]
    ]
    return [
        Result(
            name=task.name,
            what=f"steps per hour: maxAsyncLevel 2 / 0, {task.title}",
            ratio=median(rates[2]) / median(rates[0]) if complete else None,
            aim=aim,
            samples=samples,
            notes=["; ".join(story), *problems] if story else list(problems),
            figures=figures,
        ),
        Result(
            name=f"{task.name}, reward",
            what=f"mean reward of the last {TAIL} of {task.max_steps} steps: level 2 minus level 0",
            ratio=median(tails[2]) - median(tails[0]) if complete else None,
            aim=at_least(-EQUAL),
            unit="reward",
            samples=[{"level": level, "reward": reward} for level, found in tails.items() for reward in found],
            notes=list(problems),
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
