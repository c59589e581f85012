"""Pure functions that find the line numbers of fields in TOML and YAML files, for messages.

Loaded documents contain no positions. TOML lines are found by headers and keys, so a key in an inline table has no line
of its own; `line_of` returns the table's.
"""

import re
from collections.abc import Mapping

import yaml

PATH_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
HEADER = re.compile(r"\s*(\[\[?)\s*([^\]#]+?)\s*\]\]?\s*(#.*)?$")
KEY = re.compile(r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*=")
QUOTES = ('"""', "'''")


def toml_lines(text: str) -> dict[str, int]:
    """Return the line number, from 1, of each key and table of a TOML text, by path such as `env[0].id`."""
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    table = ""
    open_quote: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if open_quote:
            open_quote = None if line.count(open_quote) % 2 else open_quote
            continue
        if header := HEADER.fullmatch(line):
            table = _table_path(_keys(header[2]), counts, is_list=header[1] == "[[")
            lines.setdefault(table, number)
        elif key := KEY.match(line):
            path = ".".join(part for part in (table, *_keys(key[1])) if part)
            lines.setdefault(path, number)
            open_quote = next((quote for quote in QUOTES if line.count(quote) % 2), None)
    return lines


def _keys(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _table_path(keys: list[str], counts: dict[str, int], *, is_list: bool) -> str:
    """Return the path of a table. A table below an array of tables belongs to the array's last element."""
    path = ""
    for position, key in enumerate(keys):
        path = f"{path}.{key}" if path else key
        if is_list and position == len(keys) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = f"{path}[{counts[path]}]"
    return path


def yaml_lines(text: str) -> tuple[dict[str, int], list[tuple[str, int]]]:
    """Return the line of each field of the first document by its path, and the path and line of duplicate keys.

    Raises yaml.YAMLError.
    """
    lines: dict[str, int] = {}
    repeated: list[tuple[str, int]] = []
    root = next((node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node is not None), None)
    todo: list[tuple[str, yaml.Node]] = [] if root is None else [("", root)]
    visited: set[int] = set()
    while todo:
        path, node = todo.pop()
        if id(node) in visited:  # an alias
            continue
        visited.add(id(node))
        below: list[tuple[str, int, yaml.Node]] = []
        if isinstance(node, yaml.MappingNode):
            below = [
                (f"{path}.{key.value}" if path else str(key.value), key.start_mark.line, value)
                for key, value in node.value
            ]
            keys = [key for key, _, _ in below]
            repeated += [(key, line + 1) for n, (key, line, _) in enumerate(below) if key in keys[:n]]
        elif isinstance(node, yaml.SequenceNode):
            below = [(f"{path}[{n}]", value.start_mark.line, value) for n, value in enumerate(node.value)]
        for child, line, value in below:
            lines[child] = line + 1
            todo.append((child, value))
    return lines, repeated


def line_of(path: str, lines: Mapping[str, int]) -> int | None:
    """Return the line of a field, or of the nearest enclosing table or list, or None if none of them has a line."""
    while path:
        if path in lines:
            return lines[path]
        ends = [part.start() for part in PATH_PART.finditer(path)]
        path = path[: ends[-1]].rstrip(".") if ends else ""
    return None
