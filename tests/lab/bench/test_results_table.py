"""Rows that were measured again replace the kept ones, and the others stay."""

import json
from pathlib import Path
from typing import Any

from bench.results_table import keep, merge_entries


def row(name: str, ratio: float) -> dict[str, Any]:
    return {"name": name, "ratio": ratio}


OLD = [row("waiting", 1), row("uneven", 1), row("uneven, samples", 1), row("demo", 1)]


def test_rows_of_the_same_name_are_replaced_in_their_place() -> None:
    new = [row("uneven", 2), row("uneven, samples", 2), row("uneven, samples drawn", 2)]
    assert merge_entries(OLD, new) == [OLD[0], *new, OLD[3]]


def test_rows_with_new_names_come_last() -> None:
    assert merge_entries(OLD, [row("two replicas", 2)]) == [*OLD, row("two replicas", 2)]


def test_a_part_that_was_measured_again_leaves_the_rest_of_the_file(tmp_path: Path) -> None:
    new, kept = tmp_path / "new.json", tmp_path / "kept.json"
    new.write_text(json.dumps({"name": "trl", "results": [row("demo", 2)]}))
    kept.write_text(json.dumps({"name": "trl", "results": OLD}))
    keep(new, kept)
    assert json.loads(kept.read_text()) == {"name": "trl", "results": [*OLD[:3], row("demo", 2)]}


def test_a_benchmark_that_has_no_kept_results_is_copied(tmp_path: Path) -> None:
    new, kept = tmp_path / "new.json", tmp_path / "kept.json"
    new.write_text(json.dumps({"name": "control", "results": [row("control", 0.0)]}))
    keep(new, kept)
    assert json.loads(kept.read_text()) == json.loads(new.read_text())
