"""Benchmark of many runs on one operator: how fast they start, what they cost, and what disturbs them.

    python -m bench.scale --list                            scenarios, their sizes and minutes
    python -m bench.scale                                   all of them
    python -m bench.scale --scenario gaps --runs 20 --repeats 1
    python -m bench.scale --compare docs/bench/scale.jsonl build/bench/scale.jsonl

API server, etcd, controllers and scheduler are real; nodes and pods are KWOK's, so a pod runs as soon as it has a node.
One process responds for all orchestrators. The operator runs from this checkout with the chart's default settings. All
processes share this machine's cores. Each repetition has its own cluster. A scenario that fails does not stop the
others; the exit status is then 1. Results are written to build/bench/scale.jsonl after each scenario. --compare
measures nothing. It prints each row, and fails if a number is worse than its recorded range by more than 20% of the
range's bound.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from bench import machine_load
from bench.report import read_entries, record
from bench.scale.comparison import compare
from bench.scale.scenarios import burst, gaps, lifecycle, many, silence
from bench.scale.scenarios.scenario import Figures, Options, Scenario, results_of

SCENARIOS = {
    "lifecycle": lifecycle.SCENARIO,
    "burst": burst.SCENARIO,
    "many": many.SCENARIO,
    "gaps": gaps.SCENARIO,
    "silence": silence.SCENARIO,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 0 if all scenarios were measured, or if the comparison found no worse number."""
    args = parser().parse_args(arguments)
    if args.list:
        print(listing())
        return 0
    if args.compare:
        return gate(*args.compare)
    machine_load.require_idle(args.busy)
    failed = [name for name in SCENARIOS if name in (args.scenario or SCENARIOS) and not measure(name, args)]
    if failed:
        print(f"FAILED: {', '.join(failed)}; the errors are above", flush=True)
    return int(bool(failed))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m bench.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--scenario", action="append", choices=SCENARIOS, help="only this scenario; repeatable")
    made.add_argument("--list", action="store_true", help="list the scenarios and measure nothing")
    made.add_argument("--compare", nargs=2, type=Path, metavar=("RECORDED", "NEW"), help="compare two files of results")
    made.add_argument("--runs", type=int, help="active runs, instead of the number in the list")
    made.add_argument("--finished", type=int, help="finished runs (lifecycle, many), instead of the number in the list")
    made.add_argument("--repeats", type=int, help="repetitions, instead of the number in the list")
    machine_load.add_option(made)
    return made


def listing() -> str:
    """Return the table of the scenarios."""
    lines = [f"{'name':10} {'runs':>5} {'finished':>8} {'repeats':>7} {'minutes':>7}  what"]
    lines += [
        f"{name:10} {s.runs:>5} {s.finished or '':>8} {s.repeats:>7} {s.repeats * s.minutes:>7g}  {s.what}"
        for name, s in SCENARIOS.items()
    ]
    return "\n".join([*lines, f"{'all':32} {sum(s.repeats * s.minutes for s in SCENARIOS.values()):>7g}"])


def options(scenario: Scenario, args: argparse.Namespace) -> Options:
    """Return the sizes of a scenario: the command line's, or else the scenario's defaults."""
    return Options(
        runs=scenario.runs if args.runs is None else args.runs,
        finished=scenario.finished if args.finished is None else args.finished,
    )


def measure(name: str, args: argparse.Namespace) -> bool:
    """Measure a scenario and record its rows, including those of repetitions before one that failed.

    Returns True if all repetitions were measured.
    """
    scenario = SCENARIOS[name]
    found: list[Figures] = []
    loads: list[float] = []
    repeats = scenario.repeats if args.repeats is None else args.repeats
    for number in range(repeats):
        load = machine_load.settled_load()
        print(f"== {name}: repetition {number + 1} of {repeats}, {time.strftime('%H:%M:%S')}", flush=True)
        try:
            found.append(scenario.play(options(scenario, args)))
        except (Exception, SystemExit) as error:
            traceback.print_exception(error)
            break
        loads.append(load)
    for result in results_of(scenario.rows, found, loads) if found else ():
        record("scale", result)
    return len(found) == repeats


def gate(recorded: Path, new: Path) -> int:
    """Print the comparison of two files. Returns 1 if a number is worse, or if none could be compared."""
    verdicts = compare(read_entries(recorded), read_entries(new))
    for verdict in sorted(verdicts, key=lambda verdict: verdict.fails):
        print(f"{verdict.outcome:12}  {verdict.name}: {verdict.text}")
    worse = [verdict.name for verdict in verdicts if verdict.fails]
    compared = sum(verdict.outcome != "not compared" for verdict in verdicts)
    outcome = f"FAILED: {', '.join(worse)}" if worse else "none worse"
    print(f"{compared} of {len(verdicts)} rows compared; {outcome}")
    return int(bool(worse) or not compared)


if __name__ == "__main__":
    sys.exit(main())
