"""`python -m tests.chaos`: inject faults and check that runs recover from them. Results in build/chaos.json."""

import argparse
import fnmatch
import logging
import sys
from pathlib import Path

from tests.chaos.catalog import scenarios
from tests.chaos.report import PATH, Report, failures, read, table, this_call
from tests.chaos.runner import run_all
from tests.chaos.scenario import LEVELS, Level, Outcome, Result, Scenario
from tests.chaos.stages import stage

DESCRIPTION = """Fault tests: every scenario injects a fault and checks invariants that hold in spite of any fault.

levels (all three without --level):
  unit       operator and store with everything else in memory; minutes
  apiserver  the operator against a real kube-apiserver and etcd, through a proxy that breaks calls
  e2e        real runs on the local cluster, which must be up (`make up`)

Each scenario has a deadline; a hang is an outcome, and so is a fault that never happened. Exit code 1 if any
scenario failed, that is, did not survive and is not one of the last kills, which need not be reached.

--self-test tests the oracle instead: it plants bugs in the operator and in the store, one at a time, and prints which
scenario of a sample of the unit level reported each. Exit code 1 if one was not reported."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        "python -m tests.chaos", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--level", choices=LEVELS, action="append", help="only this level; may be repeated")
    found.add_argument("--scenario", metavar="NAME", action="append", help="only these: a name, or a pattern with *")
    found.add_argument("--seed", type=int, default=0, metavar="N", help="where seeds count from (0)")
    found.add_argument("--list", action="store_true", help="print the names, play nothing")
    found.add_argument("--self-test", action="store_true", help="plant bugs and check that the oracle reports each")
    found.add_argument("--output", type=Path, default=PATH, help=f"where results go ({PATH})")
    found.add_argument("--keep", action="store_true", help="keep the results of other scenarios that are there already")
    return found


def chosen(level: Level, seed: int, patterns: list[str] | None) -> list[Scenario]:
    """The scenarios of a level that any pattern names; all without patterns."""
    found = list(scenarios(level, seed))
    if not patterns:
        return found
    return [s for s in found if any(fnmatch.fnmatchcase(s.name, p) or s.name.startswith(f"{p}/") for p in patterns)]


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Return the exit code: 0 if no scenario failed, 1 if one did, 2 if none has that name."""
    asked = parser().parse_args(arguments)
    if asked.self_test:
        logging.disable(logging.ERROR)
        from tests.chaos import self_test

        return int(self_test.run() > 0)
    levels: list[Level] = list(asked.level or LEVELS)
    picked = {level: chosen(level, asked.seed, asked.scenario) for level in levels}
    if not any(picked.values()):
        print(f"no scenario matches {' or '.join(asked.scenario)}: --list prints all names", file=sys.stderr)
        return 2
    if asked.list:
        for level, found in picked.items():
            for scenario in found:
                print(f"{level:<10} {scenario.name} (seed {scenario.seed}, at most {scenario.seconds:.0f} s)")
        return 0
    # The operator's log messages about injected errors are expected.
    logging.disable(logging.ERROR)
    report = Report(asked.output, read(asked.output) if asked.keep else (), this_call(asked.seed))
    played: list[Result] = []
    for level, found in picked.items():
        if not found:
            continue
        print(f"==> {level}: {len(found)} scenarios", flush=True)
        with stage(level) as opened:
            played += run_all(found, opened, lambda result: _tell(report, result))
    print(table(played))
    print(f"results in {asked.output}")
    return 1 if failures(played) else 0


def _tell(report: Report, result: Result) -> None:
    report.add(result)
    if result.level != "unit" or result.outcome is not Outcome.survived:
        first = result.detail.strip().splitlines()[-1][:200] if result.detail.strip() else ""
        print(f"{result.outcome.value:<10} {result.seconds:7.1f} s  {result.name}  {first}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
