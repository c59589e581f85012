"""Tables of docs/benchmarks.md and docs/bench/README.md, written from docs/bench/*.jsonl.

python -m bench.results_table            put the rows of build/bench/*.jsonl into docs/bench, write the tables
python -m bench.results_table --show     print the table of build/bench
"""

import argparse
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from bench.repetitions import WANTED
from bench.report import BUILD, NAMES, ROOT, Entry, explanation, merge_entries, read_entries, write_entries

KEPT = ROOT / "docs" / "bench"
ASKED = (
    "trl: demo",
    "trl: waiting",
    "trl: uneven",
    "async: waiting",
    "trainer: 28m, packed",
    "trainer: MFU, 65k",
    "trainer: memory, 65k",
    "gateway: latency",
    "scale: burst pods against Jobs",
    "server: runs",
)
"""Rows that answer the questions of users who compare tools, including rows that miss their target."""
PAGES: Mapping[Path, Collection[str]] = {ROOT / "docs" / "benchmarks.md": ASKED, KEPT / "README.md": ()}
"""Pages with a table, by path, and the titles of the table's rows. An empty collection means all rows."""
BEGIN = "<!-- table: written by `make bench-table` from docs/bench/*.jsonl -->"
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


def load(folder: Path) -> dict[str, list[Entry]]:
    """Return results by benchmark, in the order of the table. Raises ValueError for any other file."""
    unknown = sorted({path.stem for path in folder.glob("*.jsonl")} - set(NAMES))
    if unknown:
        raise ValueError(f"{folder} holds {unknown}: a benchmark's file is one of {', '.join(NAMES)}")
    return {name: found for name in NAMES if (found := read_entries(folder / f"{name}.jsonl"))}


def table(results: Mapping[str, Sequence[Entry]], titles: Collection[str] = ()) -> str:
    """Return all results, or only results with one of the titles, as a Markdown table with notes below."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    notes = []
    for benchmark, entries in results.items():
        for entry in entries:
            title = f"{benchmark}: {entry['name']}"
            if titles and title not in titles:
                continue
            lines.append("| " + " | ".join(_cell(text) for text in (title, *_cells(entry))) + " |")
            if entry["valid"] is False:
                notes.append(f"- **{title}**: {explanation(entry)}")
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
    """Copy the rows of one folder into another. Rows measured on a busy machine (`--busy`) do not replace valid
    rows.
    """
    for name, entries in load(new).items():
        file = kept / f"{name}.jsonl"
        old = read_entries(file)
        valid = {entry["name"] for entry in old if entry["valid"] is not False}
        usable = [entry for entry in entries if entry["valid"] is not False or entry["name"] not in valid]
        write_entries(file, merge_entries(old, usable))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.results_table", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--show", action="store_true", help="print the table of build/bench and change nothing")
    if parser.parse_args().show:
        print(table(load(BUILD)))
        return
    keep(BUILD, KEPT)
    for path, titles in PAGES.items():
        path.write_text(page(path.read_text(), table(load(KEPT), titles)))
        print(f"wrote {path.relative_to(ROOT)}")


def _cells(entry: Entry) -> tuple[str, ...]:
    number = "not measured" if entry["ratio"] is None else f"{entry['ratio']:.3g} {entry['unit']}"
    where, loads, started = entry["machine"], entry["cores_busy_before"], entry["with_startup"]
    loop = f", loop {1000 * where['loop_seconds']:.0f} ms" if "loop_seconds" in where else ""
    gpu = f", {where['versions']['gpu']}" if "gpu" in where["versions"] else ""
    invalid = entry["valid"] is False
    return (
        entry["what"],
        f"invalid: {number}" if invalid else number,
        spread(entry),
        "-" if started is None else f"{started:.3g} {entry['unit']}",
        entry["aim"] or "",
        "invalid" if invalid else {True: "met", False: "missed", None: ""}[entry["met"]],
        f"{max(loads):.2f}" if loads else "not recorded",
        f"{where['cores']} cores, {where['memory_gib']:.0f} GiB{gpu}{loop}; {entry['commit'][:8]}",
    )


def spread(entry: Entry) -> str:
    """Return smallest, median and largest value of the repetitions, and their number if there are too few."""
    found = entry["repetitions"]
    if entry["ratio"] is None or not found:
        return ""
    few = f" (only {found['count']} repetition{'s' * (found['count'] > 1)})" if found["count"] < WANTED else ""
    return ", ".join(f"{found[name]:.3g}" for name in ("min", "median", "max")) + few


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    main()
