"""Writes TOML text. The standard library can only read it."""

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def write_toml(table: Mapping[str, Any]) -> str:
    """Return the TOML text of nested dicts, lists, strings, numbers and booleans. Keys whose value is None are omitted.

    Raises TypeError for other values, and for None in a list.
    """
    lines: list[str] = []
    _write_table(table, "", lines)
    return "\n".join(lines).strip("\n") + "\n"


def _write_table(table: Mapping[str, Any], prefix: str, lines: list[str]) -> None:
    values = {key: value for key, value in table.items() if value is not None}
    below = {key: value for key, value in values.items() if isinstance(value, dict) or _is_table_list(value)}
    lines += [f"{_key(key)} = {_value(value)}" for key, value in values.items() if key not in below]
    for key, value in below.items():
        path = f"{prefix}{_key(key)}"
        for header, entry in [(f"[{path}]", value)] if isinstance(value, dict) else [(f"[[{path}]]", e) for e in value]:
            lines += ["", header]
            _write_table(entry, f"{path}.", lines)


def _is_table_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def _text(value: str) -> str:
    # TOML has the escapes of JSON, but JSON does not escape the control character DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        pairs = ", ".join(f"{_key(key)} = {_value(below)}" for key, below in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    raise TypeError(f"TOML does not support {type(value).__name__}")
