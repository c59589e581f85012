"""Metrics of a run as columns, and thinning of them. Pure."""

import json
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rlrun.api.base.schema import Schema
from rlrun.storage.metric_files import Line, merge_lines

MAX_NAMES = 2000
"""Metrics of one run. Further ones are left out: their names are the tenant's."""
MAX_NAME = 256
MAX_STEP = 10_000_000
OTHERS = ("step", "time")
"""Keys of a line that are no metrics."""
DIGITS = 4
"""Significant digits of thinned values."""


@dataclass(frozen=True)
class Columns:
    """Numbers by name, one per step. NaN stands for none."""

    steps: Sequence[int]
    times: Sequence[str]
    values: dict[str, "array[float]"]

    @property
    def size(self) -> int:
        """Bytes in memory, about."""
        return 100 * len(self.steps) + sum(8 * len(column) + 200 for column in self.values.values())


class Series(Schema):
    """One metric."""

    name: str
    values: list[float | None]
    """Value of each step; the mean of the bucket if the answer is bucketed. null: the step has none."""
    min: list[float | None] | None = None
    """Least value of each bucket."""
    max: list[float | None] | None = None
    """Greatest value of each bucket."""


class MetricsAnswer(Schema):
    """Metrics of a run by step."""

    namespace: str
    uid: str
    steps: list[int]
    """Steps; the last one of each bucket if the answer is bucketed."""
    times: list[str]
    series: list[Series]
    bucketed: bool
    """True if several steps are one point, because there are more than `points`."""
    total_steps: int
    """Number of steps in the range."""
    is_stale: bool
    """True if S3 does not answer and these are the metrics that were read last."""


def read_columns(parts: Iterable[bytes]) -> Columns:
    """Return the columns of a run's files. Lines that are none are left out: a tenant's process writes them."""
    lines = merge_lines(line for part in parts for line in _lines(part))
    names: dict[str, None] = {}
    for line in lines:
        for name in line:
            if len(names) < MAX_NAMES and name not in OTHERS:
                names.setdefault(name)
    nan = math.nan
    values = {name: array("d", [line.get(name, nan) for line in lines]) for name in sorted(names)}
    return Columns([line["step"] for line in lines], [line["time"] for line in lines], values)


def select_names(columns: Columns, wanted: Sequence[str]) -> list[str]:
    """Return the names that are wanted: all without any, and those with a prefix for `prefix*`."""
    if not wanted:
        return list(columns.values)
    exact = {name for name in wanted if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in wanted if name.endswith("*"))
    return [name for name in columns.values if name in exact or (prefixes and name.startswith(prefixes))]


def thinned(columns: Columns, names: Sequence[str], min_step: int, max_step: int, points: int) -> MetricsAnswer:
    """Return the range of steps with at most `points` points. Namespace and uid are the caller's to set."""
    rows = [row for row, step in enumerate(columns.steps) if min_step <= step <= max_step]
    if len(rows) <= points:
        buckets = [[row] for row in rows]
    else:
        count = len(rows)
        buckets = [rows[b * count // points : (b + 1) * count // points] for b in range(points)]
    is_bucketed = len(rows) > points
    return MetricsAnswer(
        namespace="",
        uid="",
        steps=[columns.steps[bucket[-1]] for bucket in buckets],
        times=[columns.times[bucket[-1]] for bucket in buckets],
        series=[_series(name, columns.values[name], buckets, is_bucketed) for name in names],
        bucketed=is_bucketed,
        total_steps=len(rows),
        is_stale=False,
    )


def _series(name: str, column: "array[float]", buckets: Sequence[Sequence[int]], is_bucketed: bool) -> Series:
    if not is_bucketed:
        found = [column[bucket[0]] for bucket in buckets]
        return Series(name=name, values=[None if math.isnan(value) else value for value in found])
    means: list[float | None] = []
    least: list[float | None] = []
    greatest: list[float | None] = []
    for bucket in buckets:
        values = [value for value in (column[row] for row in bucket) if not math.isnan(value)]
        means.append(_short(math.fsum(value / len(values) for value in values)) if values else None)
        least.append(_short(min(values)) if values else None)
        greatest.append(_short(max(values)) if values else None)
    return Series(name=name, values=means, min=least, max=greatest)


def _short(value: float) -> float | None:
    short = float(f"{value:.{DIGITS}g}")
    # The largest numbers become infinite.
    return short if math.isfinite(short) else value


def _lines(part: bytes) -> Iterator[Line]:
    for text in part.splitlines():
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if not isinstance(found, dict):
            continue
        step = found.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= MAX_STEP:
            continue
        numbers = {name: float(value) for name, value in found.items() if _is_metric(name, value)}
        yield {**numbers, "step": step, "time": str(found.get("time") or "")[:40]}


def _is_metric(name: str, value: object) -> bool:
    """Return whether it is a number. Histograms are lists."""
    if name in OTHERS or len(name) > MAX_NAME or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
