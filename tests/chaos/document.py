"""Writer of docs/faults.md (`make chaos-table`): its only input is build/chaos.json."""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tests.chaos.report import PATH, failures, family, read
from tests.chaos.scenario import LEVELS, Outcome, Result

DOCUMENT = Path("docs/faults.md")
HEAD = """# Fault injection results

Written by `make chaos-table` from `build/chaos.json`, the results of `make chaos`. Each scenario injects faults into a
run. It survives if the run ends as expected, every Ready artifact is complete, no protected artifact is deleted, and no
unreferenced object is left ([design/013](design/013-faults.md) lists the invariants). Seconds are wall-clock time from
the start of the scenario to the last check after the run's deletion; at the e2e level most of it is the start of pods.
"""


def document(results: Sequence[Result]) -> str:
    """Return the page: a table with a row per level and family, and each scenario that did not survive."""
    lines = [HEAD, "| level | fault | scenarios | survived | seconds, median | seconds, longest |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    for level in LEVELS:
        of_level = [r for r in results if r.level == level]
        for name in sorted({family(r.name) for r in of_level}):
            mine = [r for r in of_level if family(r.name) == name]
            seconds = [r.seconds for r in mine]
            lines.append(
                f"| {level} | {name} | {len(mine)} | {sum(r.outcome is Outcome.survived for r in mine)} "
                f"| {median(seconds):.1f} | {max(seconds):.1f} |"
            )
        lines.append(
            f"| **{level}** | **all** | **{len(of_level)}** "
            f"| **{sum(r.outcome is Outcome.survived for r in of_level)}** | | |"
        )
    lines += ["", *(f"- {r.outcome.value}: {r.level} {r.name} (seed {r.seed})" for r in failures(results))]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Write the page. Return the exit code: 2 if a level has no results."""
    results = read()
    missing = [level for level in LEVELS if not any(r.level == level for r in results)]
    if missing:
        print(f"{PATH} has no results of level {', '.join(missing)}: run `make chaos` first", file=sys.stderr)
        return 2
    DOCUMENT.write_text(document(results), encoding="utf-8")
    print(f"{DOCUMENT} written from {len(results)} results")
    return 0


if __name__ == "__main__":
    sys.exit(main())
