"""Benchmark of asynchrony: steps per hour, reward and lost groups of runs that differ in one setting.

    python -m bench.async_levels --task waiting      one of the tasks (waiting, demo, long-turns); all without --task

`waiting` and `demo` compare `maxAsyncLevel` 2 (oversampling 2) with 0 (oversampling 1). Level 0 is strictly on-policy:
generation and training alternate. Level 2 generates during training, up to two steps ahead of it. `long-turns` compares
`maxOffPolicySteps` 8 with 2 at level 2: with 8, a rollout that takes longer than two steps continues with newer
policies; with 2, it is dropped.

Both sides make the same number of steps with the same seed and must reach the same reward, because a faster step that
teaches less is not a gain. The first step fills the pipeline and is not counted; a second figure counts start-up and
all steps. The results also include the number of rollouts that are drawn but not trained on.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from bench import machine_load
from bench.cluster_runs import FAILURES, BenchmarkCluster, first_line
from bench.repetitions import WANTED, middle, paired_differences, paired_ratios
from bench.report import Result, Target, at_least, at_most, record
from bench.reward_curves import Trace, drawn_rollouts, steps_per_hour
from bench.tasks import DEMO, LONG_TURNS, WAITING, Task


@dataclass(frozen=True)
class Comparison:
    """Two values of a setting on one task. The first value is the base of the ratio."""

    task: Task
    setting: str
    runs: Mapping[int, Mapping[str, Any]]
    """Fields of the run, by value of the setting."""
    aim: Target
    """Target of the ratio of steps per hour."""
    lost_aim: Target | None = None
    """Target for the fraction of drawn groups that the second value drops because of their age. None if it is not
    reported.
    """


LEVELS: dict[int, dict[str, Any]] = {
    0: {"maxAsyncLevel": 0, "oversamplingFactor": 1.0},
    2: {"maxAsyncLevel": 2, "oversamplingFactor": 2.0},
}
AGES: dict[int, dict[str, Any]] = {age: LEVELS[2] | {"maxOffPolicySteps": age} for age in (2, 8)}
COMPARISONS = {
    "waiting": Comparison(replace(WAITING, max_steps=20), "maxAsyncLevel", LEVELS, at_least(2.0)),
    "demo": Comparison(replace(DEMO, max_steps=30), "maxAsyncLevel", LEVELS, at_least(1.0)),
    "long-turns": Comparison(
        replace(LONG_TURNS, max_steps=20), "maxOffPolicySteps", AGES, at_least(1.0), lost_aim=at_most(0.01)
    ),
}
TAIL = 8
"""Number of steps at the end whose rewards are compared."""
EQUAL = 0.05
"""Difference below which rewards count as equal, about the difference between two seeds of the same setting."""


def main() -> int:
    """Run the benchmark. Returns 0 if everything was measured."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.async_levels",
        description=(__doc__ or "").splitlines()[0],
        epilog="Expected minutes of a repetition on two cores: waiting 6, demo 4, long-turns 8.",
    )
    parser.add_argument("--task", choices=sorted(COMPARISONS), action="append", help="run only this task; repeatable")
    parser.add_argument("--repeats", type=int, default=WANTED, help=f"repetitions of each value (default {WANTED})")
    machine_load.add_option(parser)
    args = parser.parse_args()
    machine_load.require_idle(args.busy)
    chosen = [COMPARISONS[name] for name in args.task or COMPARISONS]
    cluster = BenchmarkCluster.ready([comparison.task for comparison in chosen])
    done = True
    for comparison in chosen:
        traces, problems = measure(cluster, comparison, args.repeats)
        for result in results_of(comparison, traces, problems):
            record("async", result)
            done = done and result.ratio is not None
    return 0 if done else 1


def measure(
    cluster: BenchmarkCluster, comparison: Comparison, repeats: int
) -> tuple[dict[int, list[Trace]], list[str]]:
    """Return the traces by value of the setting, and the problems. The order of the two values is reversed at each
    repetition.
    """
    task = comparison.task
    traces: dict[int, list[Trace]] = {value: [] for value in comparison.runs}
    problems = []
    for seed in range(repeats):
        for value in sorted(comparison.runs, reverse=seed % 2 == 1):
            before = {"cores_busy_before": machine_load.settled_load()}
            try:
                name = f"async-{task.name.replace(' ', '-')}-{value}-{seed}"
                trace = cluster.run(task, name, seed, target=None, **comparison.runs[value])
                traces[value].append(replace(trace, facts=trace.facts | before))
            except FAILURES as error:
                print(error, file=sys.stderr, flush=True)
                problems.append(f"{comparison.setting} {value}, seed {seed}: {first_line(error)}")
    return traces, problems


def results_of(comparison: Comparison, traces: Mapping[int, Sequence[Trace]], problems: Sequence[str]) -> list[Result]:
    """Return the ratio of steps per hour, the difference of rewards and, if it has a target, the fraction of lost
    groups.
    """
    task, setting = comparison.task, comparison.setting
    base, other = comparison.runs

    def numbers(of: Callable[[Trace], float | None]) -> dict[int, dict[int, float]]:
        """Return one number per run, by value of the setting and seed. Runs without the number are omitted."""
        return {
            value: {trace.seed: number for trace in found if trace.steps and (number := of(trace)) is not None}
            for value, found in traces.items()
        }

    rates = numbers(lambda trace: steps_per_hour(trace.steps))
    tails = numbers(lambda trace: fmean(step.reward for step in trace.steps[-TAIL:]))
    trained = numbers(lambda trace: trace.trained)
    drawn = numbers(lambda trace: drawn_rollouts(trace, trace.trained, task.rollouts_per_example))
    lost = numbers(share_lost)
    whole = numbers(lambda trace: 3600 * len(trace.steps) / (trace.startup_seconds + trace.steps[-1].seconds))
    busy = [t.facts["cores_busy_before"] for found in traces.values() for t in found if "cores_busy_before" in t.facts]
    story = [
        f"{setting} {value}: {median(rates[value].values()):.0f} steps per hour, reward "
        f"{median(tails[value].values()):.3f} at the end, {median(trained[value].values()):.0f} rollouts trained on of "
        f"{median(drawn[value].values()):.0f} drawn, {median(lost[value].values()):.1%} of the groups dropped for "
        "their age"
        for value in comparison.runs
        if rates[value]
    ]
    faster = paired_ratios(rates[other], rates[base])
    better = paired_differences(tails[other], tails[base])
    results = [
        Result(
            name=task.name,
            what=f"steps per hour: {setting} {other} / {base}, {task.title}",
            ratio=middle(faster),
            aim=comparison.aim,
            samples=[trace.sample(**{setting: value}) for value, found in traces.items() for trace in found],
            notes=[*(["; ".join(story)] if story else []), *problems],
            repetitions=faster,
            with_startup=middle(paired_ratios(whole[other], whole[base])),
            cores_busy=busy,
        ),
        Result(
            name=f"{task.name}, reward",
            what=f"mean reward of the last {TAIL} of {task.max_steps} steps: {setting} {other} minus {base}",
            ratio=middle(better),
            aim=at_least(-EQUAL),
            unit="reward",
            notes=list(problems),
            repetitions=better,
            cores_busy=busy,
        ),
    ]
    if comparison.lost_aim is not None:
        shares = list(lost[other].values())
        results.append(
            Result(
                name=f"{task.name}, lost",
                what=f"groups dropped for their age, of all that ended: {setting} {other}",
                ratio=middle(shares),
                aim=comparison.lost_aim,
                unit="of the groups",
                notes=[
                    f"{setting} {value}: " + ", ".join(f"{share:.1%}" for share in of.values())
                    for value, of in lost.items()
                ],
                repetitions=shares,
                cores_busy=busy,
            )
        )
    return results


def share_lost(trace: Trace) -> float:
    """Return the fraction of ended groups that were dropped because their oldest token was too old."""
    groups: Mapping[str, int] = trace.facts.get("groups", {})
    ended = sum(number for outcome, number in groups.items() if outcome != "inFlight")
    return groups.get("stale", 0) / ended if ended else 0.0


if __name__ == "__main__":
    sys.exit(main())
