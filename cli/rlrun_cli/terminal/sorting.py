"""Sorts objects by a field, like `kubectl get --sort-by`."""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rlrun_cli.terminal.errors import INVALID, CliError

T = TypeVar("T")
PATH_PART = re.compile(r"\.([A-Za-z0-9_-]+)|\[(\d+)\]")


def parse_path(text: str) -> list[str | int]:
    """Parse a path in kubectl's syntax, such as `.status.progress.step`, optionally in braces. Raises CliError."""
    plain = text.strip().removeprefix("{").removesuffix("}")
    plain = plain if plain.startswith((".", "[")) else f".{plain}"
    parts = list(PATH_PART.finditer(plain))
    if not parts or "".join(part[0] for part in parts) != plain:
        raise CliError(
            f"--sort-by: {text!r} is not the path of a field",
            "write it as in kubectl: --sort-by .metadata.creationTimestamp",
            code=INVALID,
        )
    return [part[1] if part[1] is not None else int(part[2]) for part in parts]


def value_at(item: Any, path: Sequence[str | int]) -> Any:
    """Return the value of a field, or None if it is missing."""
    for part in path:
        if isinstance(part, str):
            item = item.get(part) if isinstance(item, dict) else None
        else:
            item = item[part] if isinstance(item, list) and part < len(item) else None
    return item


def sort(items: Sequence[T], by: str, object_of: Callable[[T], Any]) -> list[T]:
    """Sort items by a field of their objects, in ascending order. Objects without the field come last.

    Raises CliError if `by` is not a path, or if no object has the field.
    """
    path = parse_path(by)
    keyed = [(value_at(object_of(item), path), item) for item in items]
    if items and all(value is None for value, _ in keyed):
        raise CliError(
            f"--sort-by: no object has the field {by}", "see the fields of an object with -o yaml", code=INVALID
        )
    return [item for _, item in sorted(keyed, key=lambda pair: _order(pair[0]))]


def _order(value: Any) -> tuple[int, float, str]:
    if value is None:
        return 2, 0.0, ""
    if isinstance(value, int | float):
        return 0, float(value), ""
    return 1, 0.0, str(value)
