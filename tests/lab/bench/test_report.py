"""Result files and the table written from them."""

import math
from pathlib import Path
from typing import Any

import pytest

from bench import results_table
from bench.machine_load import limit
from bench.report import Result, at_least, at_most, machine, merge_entries, read_entries, record, write_entries


def result(name: str = "waiting task", ratio: float | None = 3.4, **changes: object) -> Result:
    values = {"what": "wall clock to the reward", "aim": at_least(3), "samples": [{"side": "ours", "seconds": 1 / 3}]}
    return Result(name=name, ratio=ratio, **(values | changes))  # type: ignore[arg-type]


def test_result_file_has_all_fields(tmp_path: Path) -> None:
    new = result(notes=["no KL"], figures={"steps": 30}, versions={"trl": "1.0"})
    [entry] = read_entries(record("trl", new, tmp_path))
    assert entry["samples"] == [{"side": "ours", "seconds": 0.333333}]
    assert (entry["ratio"], entry["aim"], entry["met"], entry["notes"]) == (3.4, ">= 3", True, ["no KL"])
    assert entry["machine"]["versions"] == {"trl": "1.0"}
    assert entry["figures"] == {"steps": 30}
    assert entry["command"]
    assert entry["written_at"]


def test_new_result_replaces_the_one_of_its_name_only(tmp_path: Path) -> None:
    record("trl", result("a", 1.0), tmp_path)
    record("trl", result("b", 2.0), tmp_path)
    entries = read_entries(record("trl", result("a", 5.0), tmp_path))
    assert [(e["name"], e["ratio"], e["met"]) for e in entries] == [("a", 5.0, True), ("b", 2.0, False)]


@pytest.mark.parametrize(
    ("aim", "number", "met"),
    [(at_least(3), 3.0, True), (at_least(3), 2.99, False), (at_most(0.5), 0.5, True), (at_most(0.5), 0.6, False)],
)
def test_target_is_met_or_missed(aim: object, number: float, met: bool) -> None:
    assert aim.met_by(number) is met  # type: ignore[attr-defined]


def test_target_without_a_number_is_neither_met_nor_missed(tmp_path: Path) -> None:
    [entry] = read_entries(record("trainer", result(ratio=None, notes=["not run: no GPU"]), tmp_path))
    assert entry["met"] is None
    assert "not measured" in results_table.table(results_table.load(tmp_path))
    assert not at_least(0).met_by(math.nan)


def test_unknown_benchmark_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one of trl"):
        record("speed", result(), tmp_path)
    (tmp_path / "speed.jsonl").write_text("")
    with pytest.raises(ValueError, match="speed"):
        results_table.load(tmp_path)


def test_table_has_one_row_per_result_in_a_fixed_order(tmp_path: Path) -> None:
    record("trainer", result("packing", 2.0, aim=None, unit="x | y"), tmp_path)
    record("trl", result("demo", 0.4, aim=at_least(0.5), notes=["profile: vLLM starts"]), tmp_path)
    rows = results_table.table(results_table.load(tmp_path)).splitlines()
    assert rows[2].startswith("| trl: demo | wall clock to the reward | 0.4 x |")
    assert "| >= 0.5 | missed |" in rows[2]
    assert "2 x \\| y" in rows[3]
    assert rows[-1] == "- **trl: demo**: profile: vLLM starts"


def table_of(folder: Path) -> tuple[list[dict[str, str]], list[str]]:
    """The rows of the table by column, and the notes."""
    lines = results_table.table(results_table.load(folder)).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]], [line for line in lines if line.startswith("- ")]


def test_row_shows_spread_start_up_and_load(tmp_path: Path) -> None:
    record("trl", result(repetitions=[3.0, 3.9, 3.4], with_startup=1.25, cores_busy=[0.1, 0.05]), tmp_path)
    [row], _ = table_of(tmp_path)
    assert row["min, median, max"] == "3, 3.4, 3.9"
    assert row["with start-up"] == "1.25 x"
    assert row["cores busy before"] == "0.10"
    assert row[""] == "met"


def test_result_of_a_busy_machine_is_invalid_and_meets_nothing(tmp_path: Path) -> None:
    [entry] = read_entries(
        record("trl", result("uneven", 1.82, aim=at_least(1.3), cores_busy=[0.1, 1.97972]), tmp_path)
    )
    assert (entry["valid"], entry["met"]) == (False, None)
    [row], notes = table_of(tmp_path)
    assert row["result"] == "invalid: 1.82 x"
    assert row[""] == "invalid"
    assert row["cores busy before"] == "1.98"
    assert any("1.98 cores were busy" in note for note in notes)


def test_one_reading_above_the_limit_of_the_machine_is_enough(tmp_path: Path) -> None:
    [entry] = read_entries(record("trl", result(cores_busy=[0.1, 1.98, 0.1]), tmp_path))
    assert entry["valid"] is False


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([2.0], "2, 2, 2 (only 1 repetition)"),
        ([2.0, 4.0], "2, 3, 4 (only 2 repetitions)"),
        ([1.0, 2.0, 4.0], "1, 2, 4"),
    ],
)
def test_row_with_too_few_repetitions_says_so(values: list[float], shown: str, tmp_path: Path) -> None:
    record("trl", result(repetitions=values), tmp_path)
    [row], _ = table_of(tmp_path)
    assert row["min, median, max"] == shown


def row(name: str, ratio: float) -> dict[str, Any]:
    return {"name": name, "ratio": ratio}


def test_rows_that_were_measured_again_replace_the_kept_ones_in_their_place(tmp_path: Path) -> None:
    old = [row("waiting", 1), row("uneven", 1), row("uneven, samples", 1), row("demo", 1)]
    new = [row("uneven", 2), row("uneven, samples", 2), row("uneven, samples drawn", 2)]
    assert merge_entries(old, new) == [old[0], *new, old[3]]
    assert merge_entries(old, [row("two replicas", 2)]) == [*old, row("two replicas", 2)]
    write_entries(tmp_path / "trl.jsonl", old)
    assert len((tmp_path / "trl.jsonl").read_text().splitlines()) == len(old), "one row a line"
    assert read_entries(tmp_path / "trl.jsonl") == old


def test_rows_of_a_busy_machine_replace_no_valid_ones(tmp_path: Path) -> None:
    new, kept = tmp_path / "new", tmp_path / "kept"
    record("trl", result("demo", 1.0, cores_busy=[0.1]), kept)
    for name in ("demo", "waiting"):
        record("trl", result(name, 9.0, cores_busy=[1.98]), new)
    results_table.keep(new, kept)
    assert [(e["name"], e["ratio"]) for e in read_entries(kept / "trl.jsonl")] == [("demo", 1.0), ("waiting", 9.0)]


def test_committed_rows_of_a_busy_machine_are_invalid() -> None:
    rows, _ = table_of(results_table.KEPT)
    loads = {row["benchmark"]: (row["cores busy before"], int(row["machine"].split()[0])) for row in rows}
    busy = {name for name, (load, cores) in loads.items() if load != "not recorded" and float(load) > limit(cores)}
    assert {row["benchmark"] for row in rows if row[""] == "invalid"} == busy


def test_committed_pages_match_the_committed_results_and_the_first_has_ten_rows() -> None:
    kept = results_table.load(results_table.KEPT)
    for path, titles in results_table.PAGES.items():
        text = path.read_text()
        assert results_table.page(text, results_table.table(kept, titles)) == text, "run `make bench-table`"
    names = {f"{benchmark}: {entry['name']}" for benchmark, entries in kept.items() for entry in entries}
    assert len(results_table.ASKED) == 10
    assert set(results_table.ASKED) <= names


def test_page_keeps_its_text_around_the_table() -> None:
    text = f"above\n{results_table.BEGIN}\nold\n{results_table.END}\nbelow\n"
    written = results_table.page(text, "| new |\n")
    assert written == f"above\n{results_table.BEGIN}\n\n| new |\n\n{results_table.END}\nbelow\n"
    assert results_table.page(written, "| new |\n") == written
    with pytest.raises(ValueError, match="the page needs"):
        results_table.page("no markers", "x")


def test_machine_has_cores_and_versions() -> None:
    here = machine({"torch": "2"}, ["pytest", "no-such-package"])
    assert here["cores"] >= 1
    assert 0.005 < here["loop_seconds"] < 5
    assert here["versions"]["torch"] == "2"
    assert "pytest" in here["versions"]
    assert "no-such-package" not in here["versions"]
