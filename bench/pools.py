"""Benchmark of shared pools: experiments per hour of runs that share a trainer and an engine.

    python -m bench.pools            8 runs in a pool; dedicated runs one after another; dedicated runs at once
    python -m bench.pools --curve    1, 4 and 16 runs in a pool

An experiment is one complete run, from `kubectl apply` to Completed, and includes the start of trainers and engines. A
dedicated run has a trainer and an engine of its own. In the task `waiting`, each reward waits about 10 s; in the task
`computing`, rewards take no time and the two cores are the limit. The hourly rate of experiments one after another is
computed from ALONE_RUNS experiments.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from bench import machine_load
from bench.cluster_runs import FAILURES, BenchmarkCluster, Together, first_line
from bench.repetitions import middle, paired_ratios
from bench.report import Result, at_least, at_most, record
from bench.tasks import DEMO, TINY, WAITING, Task

RUNS = 8
ALONE_RUNS = 3
AT_ONCE_RUNS = 6
"""Number of dedicated runs that run at the same time."""
CURVE = (1, 4, 16)
POOL_MODEL = replace(
    TINY, id="rlrun/reverse-text-pool", files_of=TINY.id, sharing={"mode": "Namespace", "maxRuns": 16, "idleSeconds": 0}
)


def _experiment(task: Task, steps: int) -> Task:
    return replace(task, max_steps=steps, batch_size=32, seconds=900, max_async_level=1, oversampling_factor=1.0)


TASKS: Mapping[str, Task] = {
    "waiting": replace(
        _experiment(WAITING, steps=5),
        title="each reward waits about 10 s",
        env_args=WAITING.env_args | {"mean_seconds": 10.0, "sigma": 0.3},
    ),
    "computing": replace(_experiment(DEMO, steps=20), name="computing", title="rewards take no time"),
}
AIMS = {"waiting": {"alone": 4.0, "at once": 1.5}, "computing": {"alone": 1.8}}
GIB = 2**30


@dataclass
class Measured:
    """Measurements of one task: experiments by form (`pool`, `alone`, `at once`) and repetition."""

    task: Task
    found: dict[str, dict[int, Together]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    """Cores that were busy before each measurement."""

    def add(self, form: str, repetition: int, measure: Callable[[], Together]) -> None:
        """Measure and keep the result, or the reason why there is none."""
        self.busy.append(machine_load.settled_load())
        try:
            self.found.setdefault(form, {})[repetition] = measure()
        except FAILURES as error:
            print(error, file=sys.stderr, flush=True)
            self.problems.append(f"{form}, repetition {repetition}: {first_line(error)}")

    def rates(self, form: str) -> dict[int, float]:
        """Return experiments per hour by repetition."""
        return {at: together.per_hour for at, together in self.found.get(form, {}).items()}


def main() -> int:
    """Run the benchmark. Returns 0 if everything was measured."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.pools",
        description=(__doc__ or "").splitlines()[0],
        epilog="Expected minutes of a repetition on two cores: waiting 15, computing 12, the curve 9.",
    )
    parser.add_argument("--task", choices=sorted(TASKS), action="append", help="measure only this task; repeatable")
    parser.add_argument("--curve", action="store_true", help="measure 1, 4 and 16 runs in a pool")
    parser.add_argument("--repeats", type=int, default=1, help="repetitions of each form (default 1)")
    machine_load.add_option(parser)
    args = parser.parse_args()
    machine_load.require_idle(args.busy)
    chosen = [TASKS[name] for name in args.task or (["waiting"] if args.curve else TASKS)]
    cluster = BenchmarkCluster.ready([*chosen, *(replace(task, model=POOL_MODEL) for task in chosen)])
    done = True
    for task in chosen:
        results = curve_of(cluster, task) if args.curve else results_of(measure(cluster, task, args.repeats))
        for result in results:
            record("pools", result)
            done = done and result.ratio is not None
    return 0 if done else 1


def measure(cluster: BenchmarkCluster, task: Task, repeats: int) -> Measured:
    """Measure all forms of a task."""
    measured, pooled = Measured(task), replace(task, model=POOL_MODEL)
    for repetition in range(repeats):
        measured.add("pool", repetition, lambda: cluster.run_together(pooled, RUNS))
        measured.add("pool of one", repetition, lambda: cluster.run_together(pooled, 1))
        measured.add("alone", repetition, lambda: one_after_another(cluster, task))
        measured.add("at once", repetition, lambda: cluster.run_together(task, AT_ONCE_RUNS))
    return measured


def one_after_another(cluster: BenchmarkCluster, task: Task) -> Together:
    """Run ALONE_RUNS experiments, each when the previous one has completed."""
    runs = [cluster.run_together(task, 1, first_seed=seed) for seed in range(ALONE_RUNS)]
    return Together(
        sum(run.seconds for run in runs), [t for run in runs for t in run.traces], max(run.memory for run in runs)
    )


def results_of(measured: Measured) -> list[Result]:
    """Return experiments per hour as ratios, the memory that each further run in a pool needs, and the speed of a run
    that is alone in a pool.
    """
    task, rates = measured.task, {form: measured.rates(form) for form in measured.found}
    story = [
        f"{form}: {median(found.values()):.0f} experiments per hour, "
        f"{median(t.memory for t in measured.found[form].values()) / GIB:.1f} GiB"
        for form, found in rates.items()
        if found
    ]
    samples = [
        {"form": form, "repetition": at, "seconds": together.seconds, "runs": len(together.traces)}
        | {"memory_gib": together.memory / GIB, "rewards": [trace.steps[-1].reward for trace in together.traces]}
        for form, found in measured.found.items()
        for at, together in found.items()
    ]
    names = {"alone": "one after another", "at once": f"{AT_ONCE_RUNS} at once with own trainers and engines"}
    results = []
    for form, name in names.items():
        ratios = paired_ratios(rates.get("pool", {}), rates.get(form, {}))
        aim = AIMS[task.name].get(form)
        results.append(
            Result(
                name=f"{task.name}, {form}",
                what=f"experiments per hour: {RUNS} runs in a pool / {name}, {task.title}",
                ratio=middle(ratios),
                aim=None if aim is None else at_least(aim),
                samples=samples,
                notes=[*story, *measured.problems] if form == "alone" else measured.problems,
                repetitions=ratios,
                cores_busy=measured.busy,
            )
        )
    pool, one, alone = (measured.found.get(form, {}) for form in ("pool", "pool of one", "alone"))
    further = [(pool[at].memory - one[at].memory) / (RUNS - 1) / GIB for at in pool.keys() & one.keys()]
    seconds = [{at: together.step_seconds for at, together in form.items()} for form in (one, alone)]
    slower = paired_ratios(*seconds)
    return [
        *results,
        Result(
            name=f"{task.name}, memory",
            what=f"memory of each further run in a pool of {RUNS} runs",
            ratio=middle(further),
            aim=at_most(0.5),
            unit="GiB",
            repetitions=further,
            cores_busy=measured.busy,
        ),
        Result(
            name=f"{task.name}, alone in a pool",
            what="seconds of all steps: a run alone in a pool / a run with its own trainer and engine",
            ratio=middle(slower),
            aim=at_most(1.05),
            repetitions=slower,
            cores_busy=measured.busy,
        ),
    ]


def curve_of(cluster: BenchmarkCluster, task: Task) -> list[Result]:
    """Measure pools with 1, 4 and 16 runs, and return their rates of experiments per hour."""
    measured = Measured(replace(task, model=POOL_MODEL))
    for runs in CURVE:
        measured.add(str(runs), 0, lambda runs=runs: cluster.run_together(measured.task, runs))  # type: ignore[misc]
    rates = {form: found[0] for form in measured.found if (found := measured.rates(form))}
    return [
        Result(
            name=f"{task.name}, curve",
            what=f"experiments per hour in a pool: {CURVE[-1]} runs / 1 run, {task.title}",
            ratio=rates[str(CURVE[-1])] / rates["1"] if {str(CURVE[-1]), "1"} <= rates.keys() else None,
            aim=None,
            notes=[f"{runs} runs: {rate:.0f} experiments per hour" for runs, rate in rates.items()] + measured.problems,
            figures={"experiments_per_hour": rates},
            samples=[
                {"runs": int(form), "seconds": found[0].seconds, "memory_gib": found[0].memory / GIB}
                for form, found in measured.found.items()
            ],
            cores_busy=measured.busy,
        )
    ]


if __name__ == "__main__":
    sys.exit(main())
