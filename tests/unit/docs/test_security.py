"""Every promise of docs/security.md names a test, and the tests that it names exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/security.md").read_text()
CITATION = re.compile(r"`([\w/]+\.py)?::(\w+)`")
HEAD = "| promise | held by |\n|---|---|\n"


def citations(text: str) -> list[tuple[str, str]]:
    """File and test of each citation. One without a file is in the file of the citation before it."""
    found, file = [], ""
    for match in CITATION.finditer(text):
        file = match[1] or file
        found.append((file, match[2]))
    return found


def missing(found: list[tuple[str, str]]) -> list[str]:
    """Citations without a test."""
    return [f"{file}::{name}" for file, name in found if name not in names_of_tests(file)]


def promises(text: str) -> list[str]:
    """Rows of the tables of promises."""
    return [row for table in text.split(HEAD)[1:] for row in table.partition("\n\n")[0].splitlines()]


def unproven(rows: list[str]) -> list[str]:
    """Promises without a test. The first citation of a row names its file."""
    return [row for row in rows if not (found := CITATION.search(row.rsplit(" | ", 1)[-1])) or not found[1]]


def names_of_tests(file: str) -> set[str]:
    """Names of the functions in the only file below tests/ whose path ends like that."""
    files = [path for path in (ROOT / "tests").rglob(Path(file).name) if f"/{path}".endswith(f"/{file}")]
    if len(files) != 1:
        return set()
    tree = ast.walk(ast.parse(files[0].read_text()))
    return {n.name for n in tree if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_cited_test_exists() -> None:
    found = citations(PAGE)
    assert len(found) > 10
    assert missing(found) == []


def test_a_citation_of_a_test_that_does_not_exist_is_noticed() -> None:
    here = "tests/unit/docs/test_security.py"
    text = f"`{here}::test_every_cited_test_exists`, `::test_gone`; `tests/unit/docs/test_gone.py::test_a`"
    assert missing(citations(text)) == [f"{here}::test_gone", "tests/unit/docs/test_gone.py::test_a"]


def test_a_file_that_several_folders_have_is_noticed() -> None:
    name = "test_settings.py"
    assert len(list((ROOT / "tests").rglob(name))) > 1
    assert names_of_tests(name) == set()


def test_every_promise_names_its_test() -> None:
    rows = promises(PAGE)
    assert len(rows) > 30
    assert unproven(rows) == []


@pytest.mark.parametrize(
    "planted", ["| All is safe | trust |", "| `tests/a.py::test_a` | trust |", "| Safe | `::test_a` |"]
)
def test_a_promise_without_a_test_is_noticed(planted: str) -> None:
    table = f"{HEAD}| Safe | `tests/a.py::test_a` |\n{planted}\n"
    assert unproven(promises(f"{table}\nText.\n\n{table}")) == [planted, planted]
