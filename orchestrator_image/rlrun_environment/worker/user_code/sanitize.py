"""Converts values from user code to plain JSON types of bounded size.

Completions, metric names and exception texts may have any size and type, and one value that cannot be serialized as
JSON would fail the whole group. Truncated texts and lists contain a mark where something is missing; dicts do not.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlrun.protocol.environment import ExampleContent, FunctionReward

MAX_COMPLETION = 262_144
"""Maximum number of characters of a rollout's completion, including JSON syntax; longer than any real conversation."""
MAX_DEPTH = 16
MAX_METRICS = 128
"""Maximum number of metrics per rollout. Further metrics are dropped."""
MAX_FUNCTIONS = 64
"""Maximum number of reward functions per rollout. Further functions are dropped."""
MAX_EXAMPLE = 32_768
"""Maximum number of characters of an example's answer, and of its info, each including JSON syntax."""
MAX_NAME = 200
MAX_WORDS = 600
"""Maximum number of characters of an exception's text."""


def to_finite_float(value: Any) -> float | None:
    """Return the value as a float, or None if it is not a finite number.

    Accepts every type with `__float__`, such as NumPy's and torch's scalars, and True as 1, but no strings.
    """
    if value is None or isinstance(value, str | bytes | bytearray):
        return None
    try:
        number = float(value)
    except Exception:  # __float__ may raise anything, for example RuntimeError for a tensor of two elements.
        return None
    return number if math.isfinite(number) else None


def truncate_text(text: str, limit: int) -> str:
    """Return at most `limit` characters of the text, followed by the number of omitted characters.

    Lone surrogates, which JSON parsers reject, are replaced.
    """
    cut = text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit:,} more characters)"
    return cut.encode("utf-8", "replace").decode()


def ends_of(text: str, limit: int) -> str:
    """Return about `limit` characters: the start, which names the failure, and the end, which has the causes."""
    begin = limit // 3
    return truncate_text(text if len(text) <= limit else f"{text[:begin]} ... {text[begin - limit :]}", 2 * limit)


def describe_exception(error: BaseException) -> str:
    """Return text like `KeyError: 'x'`, of bounded length, even if the exception's own code raises.

    An exception group is described by its first error, because its own text names no cause.
    """
    first = error
    with contextlib.suppress(Exception):  # `exceptions` of a user's class may raise anything.
        for _ in range(MAX_DEPTH):
            if isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
    text = _type_and_text(first)
    return text if first is error else f"{text} (first error of {_type_and_text(error)})"


def _type_and_text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = "(text not available)"
    return ends_of(f"{type(error).__name__}: {text}", MAX_WORDS)


def short_repr(value: Any, limit: int = 100) -> str:
    """Return the value's repr with bounded length, or the name of its type if repr raises."""
    if isinstance(value, str | bytes | list | tuple) and len(value) > limit:
        value = value[:limit]
    try:
        return truncate_text(repr(value), limit)
    except Exception:
        return f"a {type(value).__name__}"


def metrics(values: Any) -> dict[str, float]:
    """Return the entries that are finite numbers, at most `MAX_METRICS`."""
    if not isinstance(values, Mapping):
        return {}
    finite: dict[str, float] = {}
    for name, value in values.items():
        number = to_finite_float(value)
        if number is not None and len(finite) < MAX_METRICS:
            finite[truncate_text(str(name), MAX_NAME)] = number
    return finite


def rewards(values: Any) -> dict[str, FunctionReward]:
    """Return the results of at most `MAX_FUNCTIONS` reward functions by name. Each of the `values` is a number, with
    weight 1, or a dict with `value` and `weight`. Entries that are not finite numbers are omitted.
    """
    if not isinstance(values, Mapping):
        return {}
    by_function: dict[str, FunctionReward] = {}
    for name, entry in values.items():
        value, weight = (entry.get("value"), entry.get("weight", 1.0)) if isinstance(entry, Mapping) else (entry, 1.0)
        numbers = to_finite_float(value), to_finite_float(weight)
        if numbers[0] is not None and numbers[1] is not None and len(by_function) < MAX_FUNCTIONS:
            by_function[truncate_text(str(name), MAX_NAME)] = FunctionReward(value=numbers[0], weight=numbers[1])
    return by_function


def example(prompt: Any, row: Mapping[str, Any]) -> ExampleContent:
    """Return the fields of a group's example: its prompt, and `answer` and `info` of the dataset's row, if present."""
    return ExampleContent(
        prompt=completion(prompt),
        answer=completion(row.get("answer"), MAX_EXAMPLE),
        info=completion(row.get("info"), MAX_EXAMPLE),
    )


def completion(value: Any, limit: int = MAX_COMPLETION) -> Any:
    """Convert the value to plain JSON types of about `limit` characters. Entries beyond the limit are omitted."""
    return _SizeBudget(limit).plain(value, 0)


class _SizeBudget:
    """Converter to plain JSON types. `left` is the number of characters that the result may still use."""

    def __init__(self, left: int) -> None:
        self.left = left

    def plain(self, value: Any, depth: int) -> Any:
        self.left -= 2
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return value if value.bit_length() < 64 else short_repr(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, str):
            text = truncate_text(value, max(self.left, 0))
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
        return self.plain(short_repr(value), depth)

    def _entries(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for name, entry in value.items():
            if self.left <= 0:
                break
            name = truncate_text(str(name), MAX_NAME)
            self.left -= len(name)
            plain[name] = self.plain(entry, depth + 1)
        return plain

    def _items(self, value: Sequence[Any], depth: int) -> list[Any]:
        plain: list[Any] = []
        for index, entry in enumerate(value):
            if self.left <= 0:
                plain.append(f"({len(value) - index:,} more entries)")
                break
            plain.append(self.plain(entry, depth + 1))
        return plain
