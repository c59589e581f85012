"""Output of garbage collection as text and JSON, for the command line and the operator."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from rlrun.garbage_collection.planner import MEANING, GarbageItem
from rlrun.garbage_collection.sweep import Removed

UNKNOWN_ADVICE = (
    "Items kept because they are unknown to this cluster and have no tombstone: {count}. After a restore, recreate the "
    "objects with rlrun restore --create. To delete a run's items: rlrun gc --mark-deleted NAMESPACE/UID, then "
    "rlrun gc --delete"
)
"""Advice to users about items that are only reported."""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_age(text: str) -> timedelta:
    """Parse an age such as `24h`, `90m`, `7d` or `0s`. Raises ValueError."""
    match = re.fullmatch(r"(\d{1,6})([smhd])", text.strip())
    if not match:
        raise ValueError(f"{text!r} is not an age: write a number with s, m, h or d, as in 24h")
    return timedelta(seconds=int(match[1]) * UNITS[match[2]])


def as_dict(item: GarbageItem, removed: Removed | None = None) -> dict[str, Any]:
    """Return one entry of the JSON output. The keys `removed` and `problem` are present only after an attempt to delete
    the item.
    """
    entry: dict[str, Any] = {
        "kind": item.kind,
        "namespace": item.namespace,
        "name": item.name,
        "reason": item.reason.value,
        "message": MEANING[item.reason],
        "sizeBytes": item.size,
        "newest": item.newest.isoformat(),
    }
    if removed is not None:
        entry["removed"] = removed.problem is None
        if removed.problem is not None:
            entry["problem"] = removed.problem
    return entry


def document(
    items: Sequence[GarbageItem], removed: Sequence[Removed], notes: Sequence[str], unknown: Sequence[GarbageItem] = ()
) -> dict[str, Any]:
    """Return the complete JSON output. `removed` has the results of deletions, `unknown` the items that are only
    reported.
    """
    results = {id(r.item): r for r in removed}
    return {
        "items": [as_dict(i, results.get(id(i))) for i in items],
        "sizeBytes": sum(i.size or 0 for i in items),
        "unknown": [as_dict(i) for i in unknown],
        "notes": list(notes),
    }


def line(item: GarbageItem, now: datetime) -> str:
    """Describe the item in one line of the log."""
    hours = max(0.0, (now - item.newest).total_seconds() / 3600)
    size = "" if item.size is None else f", {item.size} bytes"
    place = item.name if item.name.startswith("s3://") else f"{item.namespace}/{item.name}"
    return f"{item.kind} {place}: {item.reason.value}, {MEANING[item.reason]} (last written {hours:.1f} h ago{size})"
