"""Benchmark of asynchrony: steps per hour and reward, `maxAsyncLevel` 2 (oversampling 2) against 0 (oversampling 1).

    python -m bench.async_levels --task waiting      one of the two tasks (waiting, demo); both without --task

Level 0 is strictly on-policy: generation and training alternate. Level 2 generates during training, up to two steps
ahead of it. Both make the same number of steps with the same seed and must reach the same reward, because a faster
step that teaches less is not a gain. The first step fills the pipeline and does not count; a second figure counts the
start-up and all steps. Rollouts that a level draws beyond those that it trains on are reported beside them.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from bench import machine_load
from bench.cluster_runs import FAILURES, BenchmarkCluster, first_line
from bench.repetitions import WANTED, middle, paired_differences, paired_ratios
from bench.report import Result, Target, at_least, record
from bench.reward_curves import Trace, arrival, drawn_rollouts, steps_per_hour
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
    parser.add_argument("--repeats", type=int, default=WANTED, help=f"repetitions of each level (default {WANTED})")
    parser.add_argument("--steps", type=int, help=f"steps of each run (default {STEPS})")
    machine_load.add_option(parser)
    args = parser.parse_args()
    machine_load.require_idle(args.busy)
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
            before: dict[str, Any] = {"seed": seed, "cores_busy_before": machine_load.settled_load()}
            try:
                name = f"async-{task.name}-{level}-{seed}"
                trace, run = cluster.run(task, name, seed, target=None, **LEVELS[level])
                before["groups"] = run.get("status", {}).get("groups", {})
                traces[level].append(replace(trace, facts=trace.facts | before))
            except FAILURES as error:
                print(error, file=sys.stderr, flush=True)
                problems.append(f"level {level}, seed {seed}: {first_line(error)}")
    return traces, problems


def results_of(task: Task, aim: Target, traces: dict[int, list[Trace]], problems: Sequence[str]) -> list[Result]:
    """Return two results of a task: the ratio of steps per hour and the difference of rewards."""
    by_seed = {level: {t.facts.get("seed", i): t for i, t in enumerate(found)} for level, found in traces.items()}
    rates = {
        level: {seed: rate for seed, t in found.items() if (rate := steps_per_hour(t.steps)) is not None}
        for level, found in by_seed.items()
    }
    whole = {
        level: {seed: whole_steps_per_hour(t) for seed, t in found.items() if t.steps}
        for level, found in by_seed.items()
    }
    tails = {
        level: {seed: fmean(s.reward for s in t.steps[-TAIL:]) for seed, t in found.items() if t.steps}
        for level, found in by_seed.items()
    }
    trained = {level: [sum(s.rollouts for s in t.steps) for t in found] for level, found in traces.items()}
    drawn = {
        level: [drawn_rollouts(t, sum(s.rollouts for s in t.steps), task.rollouts_per_example) for t in found]
        for level, found in traces.items()
    }
    arrivals = {level: [arrival(t.steps, task.target) for t in found] for level, found in traces.items()}
    figures = {
        "steps_per_hour": {str(level): list(found.values()) for level, found in rates.items()},
        "reward_at_the_end": {str(level): list(found.values()) for level, found in tails.items()},
        "seconds_to_target": {str(level): [a and a.seconds for a in found] for level, found in arrivals.items()},
        "startup_seconds": {str(level): [t.startup_seconds for t in found] for level, found in traces.items()},
        "trained": {str(level): found for level, found in trained.items()},
        "drawn": {str(level): found for level, found in drawn.items()},
        "target": task.target,
    }
    samples = [t.sample(level=level, seed=i) for level, found in traces.items() for i, t in enumerate(found)]
    busy = [t.facts["cores_busy_before"] for found in traces.values() for t in found if "cores_busy_before" in t.facts]
    story = [
        f"level {level}: {median(rates[level].values()):.0f} steps per hour, reward "
        f"{median(tails[level].values()):.3f} at the end, {median(trained[level]):.0f} rollouts trained on of "
        f"{median(drawn[level]):.0f} drawn"
        for level in LEVELS
        if rates[level]
    ]
    faster = paired_ratios(rates[2], rates[0])
    better = paired_differences(tails[2], tails[0])
    return [
        Result(
            name=task.name,
            what=f"steps per hour: maxAsyncLevel 2 / 0, {task.title}",
            ratio=middle(faster),
            aim=aim,
            samples=samples,
            notes=["; ".join(story), *problems] if story else list(problems),
            figures=figures,
            repetitions=faster,
            with_startup=middle(paired_ratios(whole[2], whole[0])),
            cores_busy=busy,
        ),
        Result(
            name=f"{task.name}, reward",
            what=f"mean reward of the last {TAIL} of {task.max_steps} steps: level 2 minus level 0",
            ratio=middle(better),
            aim=at_least(-EQUAL),
            unit="reward",
            samples=[
                {"level": level, "seed": seed, "reward": reward}
                for level, found in tails.items()
                for seed, reward in found.items()
            ],
            notes=list(problems),
            repetitions=better,
            cores_busy=busy,
        ),
    ]


def whole_steps_per_hour(trace: Trace) -> float:
    """Return the steps per hour from the command to the end of the last step."""
    return 3600 * len(trace.steps) / (trace.startup_seconds + trace.steps[-1].seconds)


if __name__ == "__main__":
    sys.exit(main())
