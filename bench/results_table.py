"""Summary table of docs/benchmarks.md, written from docs/bench/*.json.

python -m bench.results_table            put the rows of build/bench/*.json into docs/bench, write the table
python -m bench.results_table --check    fail if the table differs from docs/bench/*.json
python -m bench.results_table --show     print the table of build/bench
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.repetitions import WANTED
from bench.report import BUILD, NAMES, ROOT
from bench.validity import Entry, lacking, validity

KEPT = ROOT / "docs" / "bench"
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN = "<!-- table: written by `make bench-table` from docs/bench/*.json -->"
END = "<!-- end of table -->"
HEAD = (
    "benchmark",
    "measured",
    "result",
    "min, median, max",
    "with start-up",
    "aim",
    "",
    "cores busy before",
    "machine",
)
NOT_RECORDED = "not recorded"
NOT_APPLICABLE = "-"


def load(folder: Path) -> dict[str, list[Entry]]:
    """Return results by benchmark, in the order of the table. Raises ValueError for any other file."""
    found = {path.stem: json.loads(path.read_text())["results"] for path in sorted(folder.glob("*.json"))}
    unknown = sorted(set(found) - set(NAMES))
    if unknown:
        raise ValueError(f"{folder} holds {unknown}: a benchmark's file is one of {', '.join(NAMES)}")
    return {name: found[name] for name in NAMES if name in found}


def table(results: Mapping[str, Sequence[Entry]]) -> str:
    """Return the results as a Markdown table with notes below."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    notes = []
    for benchmark, entries in results.items():
        for entry in entries:
            title = f"{benchmark}: {entry['name']}"
            lines.append("| " + " | ".join(_cell(text) for text in (title, *_cells(entry, entries))) + " |")
            verdict = validity(entry, entries)
            if verdict.valid is False:
                notes.append(f"- **{title}**: {verdict.explanation()}")
            if "rollouts drawn" in lacking(benchmark, entry):
                notes.append(f"- **{title}**: rollouts drawn: {NOT_RECORDED}")
            notes += [f"- **{title}**: {note}" for note in entry["notes"]]
    return "\n".join([*lines, "", *notes]).strip() + "\n"


def page(text: str, written: str) -> str:
    """Return the page with its table replaced. Raises ValueError if the page has no markers for it."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}: the table goes between them")
    return f"{before}{BEGIN}\n\n{written}\n{END}{after}"


def keep(new: Path, kept: Path) -> None:
    """Merge the results of a new file into the kept file. Rows that were not measured again are kept."""
    document = json.loads(new.read_text())
    if kept.exists():
        document["results"] = merge_entries(json.loads(kept.read_text())["results"], document["results"])
    kept.write_text(json.dumps(document, indent=1) + "\n")


def merge_entries(old: Sequence[Entry], new: Sequence[Entry]) -> list[Entry]:
    """Return the old rows without those that have new results, with all new rows at the position of the first."""
    names = {entry["name"] for entry in new}
    place = next((i for i, entry in enumerate(old) if entry["name"] in names), len(old))
    return [*old[:place], *new, *(entry for entry in old[place:] if entry["name"] not in names)]


def main() -> int:
    """Run the command. Returns 1 if --check finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m bench.results_table", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page is out of date")
    parser.add_argument("--show", action="store_true", help="print the table of build/bench and change nothing")
    args = parser.parse_args()
    if args.show:
        print(table(load(BUILD)))
        return 0
    if not args.check:
        KEPT.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            if (BUILD / f"{name}.json").exists():
                keep(BUILD / f"{name}.json", KEPT / f"{name}.json")
    now = PAGE.read_text()
    wanted = page(now, table(load(KEPT)))
    if args.check:
        print("docs/benchmarks.md is up to date" if now == wanted else "docs/benchmarks.md differs: make bench-table")
        return int(now != wanted)
    PAGE.write_text(wanted)
    print(f"wrote {PAGE.relative_to(ROOT)} from {', '.join(sorted(p.name for p in KEPT.glob('*.json'))) or 'nothing'}")
    return 0


def _cells(entry: Entry, others: Sequence[Entry]) -> tuple[str, ...]:
    verdict = validity(entry, others)
    number = "not measured" if entry["ratio"] is None else f"{entry['ratio']:.3g} {entry['unit']}"
    met = {True: "met", False: "missed", None: ""}[entry["met"]]
    where = entry["machine"]
    loop = f", loop {1000 * where['loop_seconds']:.0f} ms" if "loop_seconds" in where else ""
    gpu = f", {where['versions']['gpu']}" if "gpu" in where["versions"] else ""
    return (
        entry["what"],
        f"invalid: {number}" if verdict.valid is False else number,
        spread(entry),
        with_startup(entry),
        entry["aim"] or "",
        "invalid" if verdict.valid is False else met,
        f"{verdict.busiest:.2f}" if verdict.recorded else NOT_RECORDED,
        f"{where['cores']} cores, {where['memory_gib']:.0f} GiB{gpu}{loop}; {entry['commit'][:8]}",
    )


def spread(entry: Entry) -> str:
    """Return smallest, median and largest value of the repetitions, and their number if there are too few."""
    if entry["ratio"] is None:
        return ""
    if "repetitions" not in entry:
        seeds = {sample["seed"] for sample in entry["samples"] if "seed" in sample}
        return f"{NOT_RECORDED} ({_few(len(seeds))})" if 0 < len(seeds) < WANTED else NOT_RECORDED
    found = entry["repetitions"] or {"count": 0}
    count = found["count"]
    few = _few(count) if count < WANTED else ""
    values = ", ".join(f"{found[name]:.3g}" for name in ("min", "median", "max")) if count else ""
    return f"{values} ({few})" if values and few else values or few


def _few(count: int) -> str:
    return f"only {count} repetition{'' if count == 1 else 's'}"


def with_startup(entry: Entry) -> str:
    """Return the number including start-up."""
    if entry["ratio"] is None:
        return ""
    if "with_startup" not in entry:
        return NOT_RECORDED
    return NOT_APPLICABLE if entry["with_startup"] is None else f"{entry['with_startup']:.3g} {entry['unit']}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
