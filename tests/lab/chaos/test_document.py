"""docs/faults.md is written from raw results that name where they come from, one file per level."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.document import document, keep, load, missing
from tests.chaos.scenario import Level, Origin, Outcome, Result

ORIGIN = Origin("0123456789" * 4 + "-dirty", "2026-11-21T08:00:00+00:00", "2 cores (x), 8 GiB, Python 3.11", 7)
RESULTS = [
    Result("a/1", "unit", 7, Outcome.survived, "", 0.25, ORIGIN),
    Result("a/2", "unit", 8, Outcome.not_struck, "the trainer dies: this never happened", 1.5, ORIGIN),
]


def names(level: Level, seed: int) -> list[str]:
    assert (level, seed) == ("unit", 7)
    return ["a/1", "a/2"]


def test_raw_results_survive_writing_and_reading(tmp_path: Path) -> None:
    assert keep(RESULTS, tmp_path, names) == []
    assert load(tmp_path) == {"unit": RESULTS}
    text = (tmp_path / "unit.json").read_text()
    assert json.loads(text)["calls"] == [vars(ORIGIN)]
    assert '  ["a/1", 7, "survived", 0.25, 0],' in text.splitlines()


def test_a_level_that_was_not_played_as_a_whole_is_not_kept(tmp_path: Path) -> None:
    keep(RESULTS, tmp_path, names)
    before = (tmp_path / "unit.json").read_text()
    (refused,) = keep(RESULTS[:1], tmp_path, names)
    assert "1 scenarios were not played, a/2 is the first" in refused
    assert (tmp_path / "unit.json").read_text() == before
    assert missing("unit", RESULTS, names) == []


def test_a_file_of_no_level_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="of no level"):
        load(tmp_path)


def test_the_page_names_levels_commits_and_failures() -> None:
    text = document({"unit": RESULTS})
    assert "- **unit** ([raw](faults/unit.json)): commit 01234567-dirty, 2026-11-21, seed 7, 2 cores (x)" in text
    assert "- **e2e**: not played" in text
    assert "| unit | a | 2 | 1 | 0.9 | 1.5 |" in text
    assert "- not struck: unit a/2 (seed 8)" in text


def test_the_page_names_what_was_not_reached_and_counts_it_as_no_survivor() -> None:
    text = document({"unit": [RESULTS[0], replace(RESULTS[1], outcome=Outcome.not_reached)]})
    assert "| **unit** | **all** | **2** | **1** | | |" in text
    assert "- not reached: unit a/2 (seed 8)" in text
