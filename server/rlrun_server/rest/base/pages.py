"""Pages of a list: order, cursor and limit."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rlrun.api.base.received import read_fast
from rlrun.api.base.schema import Schema
from rlrun.constants import Reason

from rlrun_server.rest.base.problems import RestError

DEFAULT_LIMIT = 50
MAX_LIMIT = 500
MAX_CURSOR = 1024

T = TypeVar("T")
Value = str | float | None
Key = tuple[bool, str | float, str]
"""Sort key of a row: a flag that sorts rows without a value last, the value, and the uid."""


@dataclass(frozen=True)
class Page(Generic[T]):
    """Page of a list."""

    rows: Sequence[T]
    total: int
    """Number of rows on all pages."""
    next_cursor: str | None


def page_of(
    rows: Iterable[T],
    value_of: Callable[[T], Value],
    uid_of: Callable[[T], str],
    *,
    descending: bool,
    filters: Schema,
    cursor: str,
    limit: int,
) -> Page[T]:
    """Sort the rows by `value_of` and then `uid_of`, rows without a value last, and return the page after the cursor.

    Raises RestError if the cursor is invalid or belongs to a list with different `filters`.
    """

    def key_of(row: T) -> Key:
        value = value_of(row)
        # Rows without a value come last in either direction.
        return (value is None) != descending, "" if value is None else value, uid_of(row)

    keyed = sorted(((key_of(row), row) for row in rows), key=lambda pair: _comparable(pair[0]), reverse=descending)
    digest = _digest(filters)
    start = 0
    if cursor:
        last = _comparable(_decode(cursor, digest))
        # Number of rows up to the end of the previous page. Some of them may have been removed since.
        keys = [_comparable(key) for key, _ in keyed]
        start = sum((key >= last) if descending else (key <= last) for key in keys)
    chosen = keyed[start : start + limit]
    is_last = start + limit >= len(keyed)
    return Page([row for _, row in chosen], len(keyed), None if is_last else _encode(chosen[-1][0], digest))


def _comparable(key: Key) -> tuple[bool, float, str, str]:
    missing, value, uid = key
    number, text = (0.0, value) if isinstance(value, str) else (float(value), "")
    return missing, number, text, uid


def _digest(filters: Schema) -> str:
    return hashlib.sha256(filters.model_dump_json().encode()).hexdigest()[:16]


def _encode(key: Key, digest: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([*key, digest]).encode()).decode().rstrip("=")


def _decode(cursor: str, digest: str) -> Key:
    try:
        parts = read_fast(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        missing, value, uid, found = parts
        if not isinstance(value, str):
            float(value)
    except (ValueError, TypeError, OverflowError):
        raise _mismatch() from None
    if found != digest or not isinstance(missing, bool) or not isinstance(uid, str):
        raise _mismatch()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _mismatch()
    return missing, value, uid


def _mismatch() -> RestError:
    detail = "The cursor is not valid for this list with its filters and order. Start again without `cursor`."
    return RestError(400, Reason.CURSOR_MISMATCH, detail)
