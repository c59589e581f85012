"""Pictures of the page in README and guide: there, small, described, and from runs that page.json names."""

import json
import re
from pathlib import Path

from tests.pictures.__main__ import LIST, RECORDING, SHOTS
from tests.support.source_tree import ROOT

IMAGES = ROOT / "docs" / "images"
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "guides" / "page.md")
PICTURE = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<file>[^)\s]*/page-[^)\s]+)\)")
MAX_BYTES = {".png": 300_000, ".webp": 2_500_000}


def test_every_picture_is_shown_described_and_small() -> None:
    found = {Path(each["file"]).name: each["text"] for file in DOCUMENTS for each in PICTURE.finditer(file.read_text())}
    assert set(found) == {RECORDING, *(shot.file for shot in (LIST, *SHOTS))}
    assert set(found) == {path.name for path in IMAGES.glob("page-*")}
    assert [name for name, text in found.items() if len(text) < 25] == []
    sizes = {path.name: path.stat().st_size / MAX_BYTES[path.suffix] for path in IMAGES.glob("page-*")}
    assert {name: size for name, size in sizes.items() if size > 1} == {}


def test_the_account_names_two_runs_of_an_example_and_a_commit() -> None:
    account = json.loads((IMAGES / "page.json").read_text())
    assert [(ROOT / run["example"]).is_file() and run["steps"] > 1 for run in account["runs"]] == [True, True]
    assert re.fullmatch(r"[0-9a-f]{40}", account["commit"])
