"""Walks name existing files, ten at most; a walk that a program does not follow is noticed."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.source_tree import ROOT
from tests.support.walks import LOG_PROBABILITY, RECONCILE, CallRecorder, Step, deviations, read_walk

MAX_FILES = 10


def broken_references(walk: list[Step], root: Path) -> list[str]:
    """Return a sentence for each step that names no function, and for each file that does not exist."""
    problems = [f"step {step.number} names no function" for step in walk if not step.functions]
    problems += [
        f"step {step.number}: {file} does not exist"
        for step in walk
        for file in step.files
        if not (root / file).is_file()
    ]
    files = {file for step in walk for file in step.files}
    return [*problems, *([f"{len(files)} files"] if len(files) > MAX_FILES else [])]


@pytest.mark.parametrize("heading", [RECONCILE, LOG_PROBABILITY])
def test_a_walk_has_at_most_ten_files_and_they_exist(heading: str) -> None:
    walk = read_walk(heading)
    assert [step.number for step in walk] == list(range(1, len(walk) + 1))
    assert len(walk) > 5
    assert broken_references(walk, ROOT) == []


@pytest.fixture
def shop(tmp_path: Path) -> ModuleType:
    """A module `shop/door.py` below the temporary folder."""
    file = tmp_path / "shop" / "door.py"
    file.parent.mkdir()
    file.write_text(
        "class Door:\n    def open(self):\n        def ring(): ...\n        ring()\ndef close(): ...\ndef lock(): ...\n"
    )
    spec = spec_from_file_location("door", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("steps", "problems"),
    [
        (["`Door.open` in `shop/door.py` rings.", "Then `close` in\n`shop/door.py`."], []),
        (["`Door` in `shop/door.py`.", "`Door.open.ring` in `shop/door.py`.", "`close` in `shop/door.py`."], []),
        (
            ["`close` in `shop/door.py`.", "`Door.open` in `shop/door.py`."],
            ["step 2: Door.open of shop/door.py was called before the step above it"],
        ),
        (["`lock` in `shop/door.py`."], ["step 1: lock of shop/door.py was not called"]),
        (["`Do` in `shop/door.py`."], ["step 1: Do of shop/door.py was not called"]),
        (["`close` in `shop/window.py`."], ["step 1: close of shop/window.py was not called"]),
    ],
)
def test_a_walk_is_compared_with_the_calls(
    shop: ModuleType, tmp_path: Path, steps: list[str], problems: list[str]
) -> None:
    text = "".join(f"{number}. {step}\n" for number, step in enumerate(steps, 1))
    walk = read_walk("Walk", f"## Walk\n\nA door:\n\n{text}\nThe end.\n\n## Next\n\n1. Other.\n")
    previous = sys.getprofile()
    with CallRecorder() as calls:
        shop.Door().open()
        shop.close()
    shop.lock()
    assert sys.getprofile() is previous
    assert deviations(walk, calls, tmp_path) == problems


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("`Door.open` in `shop/door.py` rings.", []),
        ("`close` in `shop/window.py`.", ["step 1: shop/window.py does not exist"]),
        ("The door opens.", ["step 1 names no function"]),
    ],
)
def test_a_step_that_cannot_be_followed_is_found(
    shop: ModuleType, tmp_path: Path, text: str, problems: list[str]
) -> None:
    assert broken_references([Step(1, text)], tmp_path) == problems


def test_a_walk_with_too_many_files_is_found(tmp_path: Path) -> None:
    files = [tmp_path / "shop" / f"door{number}.py" for number in range(11)]
    (tmp_path / "shop").mkdir()
    for file in files:
        file.touch()
    walk = [Step(number, f"`open` in `shop/{file.name}`") for number, file in enumerate(files, 1)]
    assert broken_references(walk, tmp_path) == ["11 files"]
