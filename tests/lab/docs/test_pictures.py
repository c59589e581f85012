"""Pictures of the page in README and guide: there, small, described, and from runs that page.json names."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.pictures import image_size, recording
from tests.support.source_tree import ROOT

IMAGES = ROOT / "docs" / "images"
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "guides" / "page.md")
PICTURE = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<file>[^)\s]*/page-[^)\s]+)\)")
SHORTEST_TEXT = 25
RECORDING = "page-recording.webp"
SECONDS = (10, 20)
"""Length of the recording."""


def named(document: Path) -> dict[str, str]:
    """Return the texts of the pictures that a document shows, by name of the file."""
    return {Path(found["file"]).name: found["text"] for found in PICTURE.finditer(document.read_text())}


ALL = sorted({name for document in DOCUMENTS for name in named(document)})


@pytest.fixture(scope="module")
def account() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((IMAGES / "page.json").read_text())
    return found


def test_the_readme_shows_the_recording_and_some_pictures() -> None:
    found = named(DOCUMENTS[0])
    assert RECORDING in found
    assert 2 <= len(found) - 1 <= 3


@pytest.mark.parametrize("name", ALL)
def test_a_picture_is_there_and_small(name: str) -> None:
    limit = recording.MAX_BYTES if name == RECORDING else image_size.MAX_BYTES
    assert 5_000 < (IMAGES / name).stat().st_size <= limit


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_pictures_are_described(document: Path) -> None:
    assert [name for name, text in named(document).items() if len(text) < SHORTEST_TEXT] == []


def test_no_picture_is_shown_nowhere() -> None:
    assert sorted(path.name for path in IMAGES.glob("page-*")) == ALL


def test_the_account_names_its_command_and_all_pictures(account: dict[str, Any]) -> None:
    command, target = account["command"].split()
    assert command == "make"
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted([*account["pictures"], account["recording"]["file"]]) == ALL
    assert re.fullmatch(r"[0-9a-f]{40}", account["commit"]), "taken from files that no commit has"


def test_the_account_names_two_runs_of_an_example(account: dict[str, Any]) -> None:
    assert len(account["runs"]) == 2
    for run in account["runs"]:
        assert (ROOT / run["example"]).is_file()
        assert run["steps"] > 1
    assert account["recording"]["run"] in {run["name"] for run in account["runs"]}


def test_the_recording_has_the_length_that_the_account_names(account: dict[str, Any]) -> None:
    image = Image.open(IMAGES / RECORDING)
    seconds = 0.0
    for at in range(image.n_frames):
        image.seek(at)
        image.load()
        seconds += image.info["duration"] / 1000
    assert SECONDS[0] <= seconds <= SECONDS[1]
    assert seconds == pytest.approx(account["recording"]["shown_seconds"], abs=0.2)
    assert list(account["recording"]["scenes"])[1:4] == ["Pending", "Running", "Completed"]
    assert image.width == pytest.approx(1200, abs=10)
