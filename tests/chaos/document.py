"""`make chaos-table`: docs/faults.md from build/chaos.json, and from nothing else."""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tests.chaos.report import PATH, failures, family, read
from tests.chaos.scenario import LEVELS, Outcome, Result

DOCUMENT = Path("docs/faults.md")
HEAD = """# Faults that were played

Written by `make chaos-table` from what `make chaos` left in `build/chaos.json`. Each scenario breaks something, and
survives if the run comes to the end that it should, nothing that is Ready is partial, nothing protected is deleted and
nothing is left over ([design/013](design/013-faults.md) has the rules). Seconds are of the clock, from the beginning of
the scenario to the last check after the run's deletion; at the e2e level most of them are the start of pods.
"""


def document(results: Sequence[Result]) -> str:
    """Markdown: a table with a line per level and family, and each scenario that did not survive."""
    lines = [HEAD, "| level | what breaks | scenarios | survived | seconds, median | seconds, longest |"]
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
    """The exit code: 2 where there are no results of some level."""
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
