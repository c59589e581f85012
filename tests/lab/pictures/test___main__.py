"""New pictures in place of old ones, and what page.json says of them."""

import json
from pathlib import Path

import pytest

from tests.pictures.__main__ import ACCOUNT, replace, run_facts


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    new, images = tmp_path / "new", tmp_path / "images"
    new.mkdir()
    images.mkdir()
    (new / "page-run.png").write_text("new")
    for name in ("page-run.png", "page-old.png", "page.json", "system.svg"):
        (images / name).write_text("old")
    return new, images


def test_all_old_pictures_go_when_the_new_ones_are_complete(folders: tuple[Path, Path]) -> None:
    new, images = folders
    replace(new, images, {"command": "make pictures"}, is_complete=True)
    assert {path.name: path.read_text() for path in images.glob("*.*g")} == {"page-run.png": "new", "system.svg": "old"}
    assert json.loads((images / ACCOUNT).read_text()) == {"command": "make pictures"}


def test_pictures_that_could_not_be_made_again_stay(folders: tuple[Path, Path]) -> None:
    new, images = folders
    replace(new, images, {}, is_complete=False)
    assert {path.name: path.read_text() for path in images.glob("*.png")} == {
        "page-run.png": "new",
        "page-old.png": "old",
    }


def test_the_account_of_a_run_names_its_example() -> None:
    status = {"startTime": "2026-01-01T00:00:00Z", "progress": {"step": 30}}
    run = {"metadata": {"name": "reverse-text", "uid": "u"}, "status": status}
    found = run_facts(run, [0.25, 0.5, 0.75])
    assert (found["example"], found["steps"], found["reward_first"], found["reward_last"]) == (
        "examples/reverse-text.yaml",
        30,
        0.25,
        0.75,
    )
