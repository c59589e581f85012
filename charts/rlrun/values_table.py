"""Write the table of values in README.md from values.yaml: `python charts/rlrun/values_table.py [--check]`.

A comment that begins with `# --` describes the value below it, with all that is inside of it. Values that operator,
server, tinker, egress and jobs have in common with `pods` are described there.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parent
BEGIN, END = "<!-- values: begin -->\n", "<!-- values: end -->\n"
MARK = "# -- "
SHARED = "pods"
MAX_DEFAULT = 60


class Undocumented(Exception):
    """A value has no description."""


def rows(text: str) -> Iterator[tuple[str, Any, str]]:
    """Yield path, default and description of each value. Raises Undocumented."""
    root = yaml.compose(text, yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    (shared,) = [value for key, value in root.value if key.value == SHARED]
    yield from _rows(root, "", text.splitlines(), {key.value for key, _ in shared.value})


def _rows(node: yaml.MappingNode, prefix: str, lines: list[str], shared: set[str]) -> Iterator[tuple[str, Any, str]]:
    for key, value in node.value:
        path = prefix + key.value
        description = _description(lines, key.start_mark.line)
        if description:
            yield path, yaml.safe_load(yaml.serialize(value)), description
        elif isinstance(value, yaml.MappingNode) and value.value and not value.flow_style:
            yield from _rows(value, f"{path}.", lines, shared)
        elif key.value not in shared:
            line = key.start_mark.line + 1
            raise Undocumented(f"values.yaml, line {line}: {path} has no comment that begins with # --")


def _description(lines: list[str], line: int) -> str:
    """Return the description in the comment above a line, or an empty text."""
    found: list[str] = []
    for above in reversed(lines[:line]):
        text = above.strip()
        if not text.startswith("#"):
            return ""
        if text.startswith(MARK):
            return " ".join([text.removeprefix(MARK), *found])
        found.insert(0, text.removeprefix("#").strip())
    return ""


def table(text: str) -> str:
    """Return the table in Markdown. Raises Undocumented."""
    written = ["| value | default | meaning |\n|---|---|---|\n"]
    for path, default, description in rows(text):
        shown = json.dumps(default, ensure_ascii=False)
        cell = "unset" if default is None else f"`{shown}`" if len(shown) <= MAX_DEFAULT else "see values.yaml"
        written.append(f"| `{path}` | {cell} | {description} |\n")
    return "".join(written)


def with_table(readme: str, text: str) -> str:
    """Return the README with the table of these values. Raises Undocumented."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table(text)}{END}{after}"


if __name__ == "__main__":
    file = CHART / "README.md"
    wanted = with_table(file.read_text(encoding="utf-8"), (CHART / "values.yaml").read_text(encoding="utf-8"))
    if "--check" in sys.argv[1:]:
        if file.read_text(encoding="utf-8") != wanted:
            raise SystemExit("README.md has another table: run `python charts/rlrun/values_table.py`")
    else:
        file.write_text(wanted, encoding="utf-8")
