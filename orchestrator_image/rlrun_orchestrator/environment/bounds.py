"""What users' code hands over, made small and plain before it goes on the wire.

A completion, a metric's name or an exception's text may be of any size and of any type, and one that cannot be written
as JSON would cost the whole group. Each is cut here, and what was cut says so.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

MAX_COMPLETION = 262_144
"""Characters of one rollout's completion, its structure included: more than any conversation that fits a model."""
MAX_DEPTH = 16
MAX_METRICS = 128
"""Of one rollout; the first ones are kept."""
MAX_NAME = 200
MAX_WORDS = 300
"""Characters of an exception's own text."""


def finite(value: Any) -> float | None:
    """The value as a float, or None when it is no finite number.

    Whatever has `__float__` is a number (NumPy's and torch's scalars, and True as 1); a text is none, even "1.0".
    """
    if value is None or isinstance(value, str | bytes | bytearray):
        return None
    try:
        number = float(value)
    except Exception:  # Whatever __float__ raises, RuntimeError for a tensor of two elements among them.
        return None
    return number if math.isfinite(number) else None


def clean(text: str, limit: int) -> str:
    """At most `limit` characters of the text, without lone surrogates: no JSON reader would take those."""
    cut = text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit:,} more characters)"
    return cut.encode("utf-8", "replace").decode()


def words(error: BaseException) -> str:
    """`KeyError: 'x'`, of bounded length, whatever the exception's own `__str__` does."""
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be had)"
    return clean(f"{type(error).__name__}: {text}", MAX_WORDS)


def shown(value: Any, limit: int = 100) -> str:
    """The value's repr, of bounded length; its type's name where repr fails."""
    if isinstance(value, str | bytes | list | tuple) and len(value) > limit:
        value = value[:limit]
    try:
        return clean(repr(value), limit)
    except Exception:
        return f"a {type(value).__name__}"


def metrics(values: Any) -> dict[str, float]:
    """The entries that are finite numbers, at most `MAX_METRICS` of them."""
    if not isinstance(values, Mapping):
        return {}
    found: dict[str, float] = {}
    for name, value in values.items():
        number = finite(value)
        if number is not None and len(found) < MAX_METRICS:
            found[clean(str(name), MAX_NAME)] = number
    return found


def completion(value: Any, limit: int = MAX_COMPLETION) -> Any:
    """The value as plain JSON types of about `limit` characters at most; what does not fit is left out."""
    return _Budget(limit).plain(value, 0)


class _Budget:
    """Characters that may still be spent."""

    def __init__(self, left: int) -> None:
        self.left = left

    def plain(self, value: Any, depth: int) -> Any:
        self.left -= 2
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return value if value.bit_length() < 64 else shown(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, str):
            text = clean(value, max(self.left, 0))
            self.left -= len(text)
            return text
        if depth >= MAX_DEPTH:
            return "(nested too deeply)"
        if isinstance(value, Mapping):
            return self._entries(value, depth)
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
            return self._items(value, depth)
        dump = getattr(value, "model_dump", None)
        if callable(dump):
            return self.plain(dump(exclude_none=True), depth + 1)
        return self.plain(shown(value), depth)

    def _entries(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for name, entry in value.items():
            if self.left <= 0:
                break
            name = clean(str(name), MAX_NAME)
            self.left -= len(name)
            plain[name] = self.plain(entry, depth + 1)
        return plain

    def _items(self, value: Sequence[Any], depth: int) -> list[Any]:
        plain: list[Any] = []
        for place, entry in enumerate(value):
            if self.left <= 0:
                plain.append(f"({len(value) - place:,} more entries)")
                break
            plain.append(self.plain(entry, depth + 1))
        return plain
