"""Generator of docs/fields.md, the tests that prove the effect of each field, from the marks in the tests.

A test that fails if a field of RLRun's spec has no effect is marked:

    @pytest.mark.proves("sampling.topP", "sampling.minTokens")

python -m tests.support.field_proofs             write docs/fields.md
python -m tests.support.field_proofs --check     fail if it differs from the marks
"""

import argparse
import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

from rlrun.codegen.crd import KINDS, stored_schema
from rlrun.codegen.reference_pages import Row, rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "fields.md"
COMMAND = "python -m tests.support.field_proofs"


@functools.cache
def fields() -> dict[str, Row]:
    """Return the fields of RLRun's spec that hold a value. Sections are covered by their fields."""
    kind = next(kind for kind in KINDS if kind.name == "RLRun")
    spec = stored_schema(kind)["properties"]["spec"]
    found = list(rows(spec))
    inner = {row.path.rpartition(".")[0].removesuffix("[]") for row in found}
    return {row.path.replace("[]", ""): row for row in found if row.path not in inner}


@functools.cache
def proofs(folder: Path = ROOT / "tests") -> dict[str, list[str]]:
    """Return the tests marked with each field, as `path::name`, in the order of their paths."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for name, field in _marks(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(field, []).append(f"{path.relative_to(folder.parent).as_posix()}::{name}")
    return found


def page() -> str:
    """Return the text of docs/fields.md."""
    known, proved = fields(), proofs()
    lines = [
        "# Fields of an RLRun and their tests",
        "",
        f"<!-- Generated from the marks in tests/ by `{COMMAND}`; mark the test. -->",
        "",
        "Each field of RLRun's spec, and the tests that fail if it has no effect. Tests under `tests/unit*` run",
        "with small local servers, `tests/apiserver` against a real API server, `tests/e2e` on a real node.",
        "",
        "| Field | Description | Proved by |",
        "|---|---|---|",
    ]
    for name, row in known.items():
        tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in proved.get(name, []))
        lines.append(f"| `{name}` | {' '.join(row.description.split()).replace('|', chr(92) + '|')} | {tests} |")
    return "\n".join(lines) + "\n"


def _marks(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, str]]:
    """(test, field) for every field in every mark. The test of a class is `Class::test`, as pytest names it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _marks(node, f"{inside}{node.name}::")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.proves":
                    yield from ((inside + node.name, ast.literal_eval(argument)) for argument in mark.args)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Write docs/fields.md from the marks in the tests.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page is not up to date")
    if parser.parse_args().check:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
            return 0
        print(f"{PAGE.relative_to(ROOT)} is not what the marks say: run `{COMMAND}`", file=sys.stderr)
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
