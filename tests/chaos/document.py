"""Writer of docs/faults.md (`make chaos-table`) and of its raw results, docs/faults/<level>.json.

python -m tests.chaos.document            keep the levels of build/chaos.json in docs/faults, write the page
python -m tests.chaos.document --check    fail if the page differs from docs/faults/*.json
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from tests.chaos.catalog import scenarios
from tests.chaos.report import PATH, family, from_json, origins, read, to_json
from tests.chaos.scenario import LEVELS, Level, Outcome, Result

PAGE = Path("docs/faults.md")
KEPT = Path("docs/faults")
COLUMNS = ("name", "seed", "outcome", "seconds", "call", "detail")
"""Of one scenario in a file of raw results."""
HEAD = """# Fault injection results

Written by `make chaos-table` from [faults](faults), the raw results of `make chaos`: a file per level with every
scenario, its outcome and its seconds. Each scenario injects faults into a run. It survives if the faults happened, the
run ends as expected, every Ready artifact is complete, exactly the artifacts that retention keeps are there, and no
unreferenced object is left ([design/013](design/013-faults.md) lists the invariants). At the unit and apiserver levels
restarts, restarts of the run and attempts must also be counted as they happened; at the e2e level one scenario,
`paused`, checks the attempts. Each level is judged by the invariants of the commit that is named for it. Kills of the
operator are counted by the state that they leave: those that would leave the same are one scenario. Lives on a real API
server differ by a few calls; a kill at one of the last positions that a life did not reach is listed as *not reached*,
neither a survivor nor a failure. Seconds are wall-clock time from the start of the scenario to the last check after the
run's deletion; at the e2e level most of it is the start of pods.
"""

Names = Callable[[Level, int], Iterable[str]]


def document(kept: Mapping[Level, Sequence[Result]]) -> str:
    """Return the page: where the results come from, a table with a row per level and family, and each scenario that
    did not survive."""
    lines = [HEAD, *(_origin(level, kept.get(level, ())) for level in LEVELS), ""]
    lines.append("| level | fault | scenarios | survived | seconds, median | seconds, longest |")
    lines.append("|---|---|---:|---:|---:|---:|")
    for level in LEVELS:
        of_level = kept.get(level, ())
        for name in sorted({family(r.name) for r in of_level}):
            mine = [r for r in of_level if family(r.name) == name]
            seconds = [r.seconds for r in mine]
            lines.append(
                f"| {level} | {name} | {len(mine)} | {_survivors(mine)} | {median(seconds):.1f} | {max(seconds):.1f} |"
            )
        if of_level:
            lines.append(f"| **{level}** | **all** | **{len(of_level)}** | **{_survivors(of_level)}** | | |")
    failed = [r for level in LEVELS for r in kept.get(level, ()) if r.outcome is not Outcome.survived]
    lines += ["", *(f"- {r.outcome.value}: {r.level} {r.name} (seed {r.seed})" for r in failed)]
    return "\n".join(lines).rstrip() + "\n"


def _survivors(results: Iterable[Result]) -> int:
    return sum(r.outcome is Outcome.survived for r in results)


def _origin(level: Level, results: Sequence[Result]) -> str:
    if not results:
        return f"- **{level}**: not played"
    calls = [
        f"commit {o.commit[:8]}{o.commit[40:]}, {o.date[:10]}, seed {o.seed}, {o.machine}" for o in origins(results)
    ]
    return f"- **{level}** ([raw](faults/{level}.json)): {'; '.join(calls) or 'not recorded'}"


def raw(level: Level, results: Sequence[Result]) -> str:
    """Return the text of a level's file: a line per scenario, so that a difference can be read."""
    found = to_json(results)
    rows = []
    for entry in found["scenarios"]:
        row = [entry[column] for column in COLUMNS]
        rows.append(json.dumps(row if row[-1] else row[:-1]))
    head = {"level": level, "calls": found["calls"], "columns": COLUMNS}
    return json.dumps(head, indent=1)[:-2] + ',\n "scenarios": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n"


def load(folder: Path = KEPT) -> dict[Level, list[Result]]:
    """Return the results by level. Raises ValueError for a file of something else."""
    found: dict[Level, list[Result]] = {}
    for path in sorted(folder.glob("*.json")):
        level = next((level for level in LEVELS if level == path.stem), None)
        if level is None:
            raise ValueError(f"{path} is of no level: files are named {', '.join(LEVELS)}")
        text = json.loads(path.read_text(encoding="utf-8"))
        entries = [{"detail": "", "level": level} | dict(zip(COLUMNS, row, strict=False)) for row in text["scenarios"]]
        found[level] = from_json({"calls": text["calls"], "scenarios": entries})
    return found


def missing(level: Level, results: Sequence[Result], names: Names) -> list[str]:
    """Return the scenarios of the level, with the seeds that were played, that have no result."""
    wanted = {name for origin in origins(results) for name in names(level, origin.seed)}
    return sorted(wanted - {r.name for r in results})


def keep(results: Sequence[Result], folder: Path, names: Names) -> list[str]:
    """Replace the files of the levels that were played. Return why not, for levels that were not played as a whole."""
    refused = []
    for level in LEVELS:
        mine = [r for r in results if r.level == level]
        if not mine:
            continue
        if left := missing(level, mine, names):
            refused.append(
                f"{level}: {len(left)} scenarios were not played, {left[0]} is the first. Run "
                f'`make chaos CHAOS="--keep --level {level}"`'
            )
            continue
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{level}.json").write_text(raw(level, mine), encoding="utf-8")
    return refused


def _names(level: Level, seed: int) -> list[str]:
    return [s.name for s in scenarios(level, seed)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return the exit code: 1 if --check finds a difference, 2 if a level cannot be kept."""
    parser = argparse.ArgumentParser("python -m tests.chaos.document", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page is out of date")
    if parser.parse_args(arguments).check:
        same = PAGE.read_text(encoding="utf-8") == document(load())
        print(f"{PAGE} is up to date" if same else f"{PAGE} differs from {KEPT}: make chaos-table")
        return int(not same)
    results = read()
    refused = keep(results, KEPT, _names) if results else [f"{PATH} has no results: run `make chaos` first"]
    for line in refused:
        print(line, file=sys.stderr)
    kept = load()
    if not kept:
        return 2
    PAGE.write_text(document(kept), encoding="utf-8")
    print(f"{PAGE} written from {', '.join(f'{KEPT}/{level}.json' for level in kept)}")
    return 2 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
