"""The walks in CONTRIBUTING.md name files that exist and functions that these files define."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WALKS = ("Follow one reconcile", "Follow one token's log-probability")
MOST_STEPS = 10
STEP = re.compile(r"^(?P<number>\d+)\. (?P<text>.+?)(?=^\d+\. |\Z)", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`(?P<path>[\w./-]+/[\w.-]+\.\w+)`")
DEFINITION = re.compile(r"`(?P<name>[A-Za-z_][\w.]*)`\s+in\s+`(?P<path>[^`]+\.py)`")


def steps(text: str, heading: str) -> list[str]:
    """Return the numbered steps of a section."""
    (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    found = list(STEP.finditer(section))
    assert [int(step["number"]) for step in found] == list(range(1, len(found) + 1))
    return [step["text"] for step in found]


def definitions(source: str) -> set[str]:
    """Return the dotted names of the functions, classes and methods that a module defines."""

    def names(body: list[ast.stmt], prefix: str) -> set[str]:
        found: set[str] = set()
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found |= {prefix + node.name} | names(node.body, f"{prefix}{node.name}.")
        return found

    return names(ast.parse(source).body, "")


def problems(walk: list[str], root: Path) -> list[str]:
    """Return a sentence for every step that a reader could not follow."""
    found = [f"{len(walk)} steps"] if len(walk) > MOST_STEPS else []
    for number, step in enumerate(walk, 1):
        paths = [match["path"] for match in FILE.finditer(step)]
        missing = [path for path in paths if not (root / path).is_file()]
        found += [f"step {number}: {path} does not exist" for path in missing]
        if not paths:
            found.append(f"step {number} names no file")
        for match in DEFINITION.finditer(step):
            name, path = match["name"], match["path"]
            if path not in missing and name not in definitions((root / path).read_text()):
                found.append(f"step {number}: {path} does not define {name}")
    return found


@pytest.mark.parametrize("heading", WALKS)
def test_walk_has_at_most_ten_steps_that_name_existing_files_and_functions(heading: str) -> None:
    walk = steps((ROOT / "CONTRIBUTING.md").read_text(), heading)
    assert walk
    assert problems(walk, ROOT) == []
    assert [step for step in walk if not DEFINITION.search(step)] == []


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("`Door.open` in `shop/door.py` opens it.", None),
        ("`close` in `shop/door.py` closes it.", "step 1: shop/door.py does not define close"),
        ("`open` in `shop/window.py` opens it.", "step 1: shop/window.py does not exist"),
        ("The door opens.", "step 1 names no file"),
    ],
)
def test_step_that_cannot_be_followed_is_found(tmp_path: Path, step: str, problem: str | None) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "door.py").write_text("class Door:\n    def open(self) -> None: ...\n")
    (walk,) = steps(f"## Walk\n\n1. {step}\n\n## Next\n\n1. Other.\n", "Walk")
    assert problems([walk], tmp_path) == ([problem] if problem else [])


def test_walk_with_too_many_steps_is_found(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "door.py").write_text("")
    assert problems(["`shop/door.py`"] * 11, tmp_path) == ["11 steps"]
