"""What counts as an input of a level."""

import ast
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.level_inputs import UNREAD, inputs_key
from tests.support.source_tree import PYTHONPATH, ROOT

TESTS = {
    "trainer": ("tests/image/rlrun_trainer", "tests/image/bench", "tests/image/examples"),
    "inference": ("tests/image/rlrun_inference",),
    "browser": ("tests/browser",),
    "apiserver": ("tests/apiserver",),
    "e2e": ("tests/e2e",),
    "e2e-alone": ("tests/e2e",),
}
"""Folders of tests by level, as in tests/run.sh."""

FILES = ("core/a.py", "docs/guide.md", "tests/unit/test_a.py")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    return tmp_path


def key(tree: Path, *unread: str) -> str:
    return inputs_key(tree, FILES, unread)


def test_same_content_has_the_same_key_in_any_order(tree: Path) -> None:
    assert key(tree) == inputs_key(tree, reversed(FILES), ())


@pytest.mark.parametrize("name", FILES)
def test_every_change_of_a_read_file_changes_the_key(tree: Path, name: str) -> None:
    before = key(tree)
    (tree / name).write_text("x = 2\n")
    changed = key(tree)
    (tree / name).chmod(0o755)
    executable = key(tree)
    (tree / name).unlink()
    assert len({before, changed, executable, key(tree)}) == 4


def test_unread_folders_do_not_count_and_their_namesakes_do(tree: Path) -> None:
    before = key(tree, "docs", "tests/unit")
    (tree / "docs/guide.md").write_text("changed")
    (tree / "tests/unit/test_a.py").write_text("changed")
    assert key(tree, "docs", "tests/unit") == before
    assert key(tree, "doc", "tests/un") != key(tree, "docs", "tests/unit")


@pytest.mark.parametrize("path", sorted({path for paths in UNREAD.values() for path in paths}))
def test_unread_paths_exist(path: str) -> None:
    assert (ROOT / path).exists(), "remove it from UNREAD, or write its new name"


def modules_of_the_tree() -> dict[str, str]:
    """Return the file of each module."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    packages = sorted((os.path.relpath(path, ROOT) for path in PYTHONPATH.split(os.pathsep)), key=len, reverse=True)
    found = {}
    for name in listed.split():
        folder = next((f"{each}/" for each in packages if name.startswith(f"{each}/")), "")
        found[name.removeprefix(folder).removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = name
    return found


def imports_of(file: str) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def imported_files(folders: Iterable[str]) -> dict[str, str]:
    """Return the files that tests import, directly or not, each with a file that imports it."""
    modules = modules_of_the_tree()
    waiting = [file for file in modules.values() if file.startswith(tuple(f"{folder}/" for folder in folders))]
    found = dict.fromkeys(waiting, "")
    while waiting:
        importer = waiting.pop()
        for file in {modules[name] for name in imports_of(importer) if name in modules} - found.keys():
            found[file] = importer
            waiting.append(file)
    return found


@pytest.mark.parametrize("level", UNREAD)
def test_a_level_imports_nothing_that_it_does_not_read(level: str) -> None:
    found = imported_files(TESTS[level])
    assert len(found) > len(TESTS[level])
    unread = tuple(f"{path}/" for path in UNREAD[level])
    assert {file: by for file, by in found.items() if file.startswith(unread)} == {}
