"""Repetitions of a measurement: median and spread, ratios of pairs, and percentiles. Pure.

The number of a row is the median of its repetitions. Two sides are compared repetition by repetition, because both
sides of a repetition ran directly one after the other with the same seed.
"""

from collections.abc import Mapping, Sequence
from statistics import median

WANTED = 3
"""Number of repetitions that a row should have. The table marks a row with fewer."""


def spread_of(values: Sequence[float]) -> dict[str, float] | None:
    """Return the number of values, and the smallest, median and largest value. Returns None without values."""
    if not values:
        return None
    return {"count": len(values), "min": min(values), "median": median(values), "max": max(values)}


def paired_ratios(above: Mapping[int, float], below: Mapping[int, float]) -> list[float]:
    """Return above / below for each repetition that both mappings have, in order. Repetitions with 0 in `below` are
    omitted.
    """
    return [above[at] / below[at] for at in sorted(above.keys() & below.keys()) if below[at]]


def paired_differences(left: Mapping[int, float], right: Mapping[int, float]) -> list[float]:
    """Return left - right for each repetition that both mappings have, in order."""
    return [left[at] - right[at] for at in sorted(left.keys() & right.keys())]


def middle(values: Sequence[float]) -> float | None:
    """Return the median, or None without values."""
    return median(values) if values else None


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]
