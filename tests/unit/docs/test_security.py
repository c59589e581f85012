"""The tests that docs/security.md names exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
CITATION = re.compile(r"`(tests/[\w/]+\.py)?::(\w+)`")


def citations(text: str) -> list[tuple[str, str]]:
    """File and test of each citation. One without a file is in the file of the citation before it."""
    found, file = [], ""
    for match in CITATION.finditer(text):
        file = match[1] or file
        found.append((file, match[2]))
    return found


def missing(found: list[tuple[str, str]]) -> list[str]:
    """Citations without a test."""
    return [f"{file}::{name}" for file, name in found if name not in names_of_tests(ROOT / file)]


def names_of_tests(file: Path) -> set[str]:
    if not file.is_file():
        return set()
    return {
        n.name for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_cited_test_exists() -> None:
    found = citations((ROOT / "docs/security.md").read_text())
    assert len(found) > 10
    assert missing(found) == []


def test_a_citation_of_a_test_that_does_not_exist_is_noticed() -> None:
    here = "tests/unit/docs/test_security.py"
    text = f"`{here}::test_every_cited_test_exists`, `::test_gone`; `tests/unit/docs/test_gone.py::test_a`"
    assert missing(citations(text)) == [f"{here}::test_gone", "tests/unit/docs/test_gone.py::test_a"]
