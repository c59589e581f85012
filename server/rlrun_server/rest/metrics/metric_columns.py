"""Parses the metrics of a run into columns, and reduces them to a limited number of points."""

import io
import json
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rlrun.api.base.received import InputLimits, check_limits
from rlrun.api.base.schema import Schema
from rlrun.storage.metric_files import TRAINED, Line

MAX_NAMES = 2000
"""Maximum number of metrics of one run. Further metrics are left out, because a tenant chooses the names."""
MAX_NAME = 256
MAX_STEP = 10_000_000
MAX_CELLS = 4_000_000
"""Maximum number of cells in the table of one run, which then takes 32 MB."""
MAX_ROWS = 200_000
"""Maximum number of steps of one run, including steps without a metric. Each needs at least 100 bytes."""
LINE_LIMITS = InputLimits(size=1024**2, values=100_000)
OTHERS = ("step", "time")
"""Keys of a line that are not metrics."""
DIGITS = 4
"""Significant digits of values that are reduced to buckets."""


class TooManyValues(Exception):
    """Raised if a run has more than MAX_ROWS steps or MAX_CELLS cells."""


@dataclass(frozen=True)
class Columns:
    """Metrics of a run by name, with one number for each step. The number is NaN if the step lacks the metric."""

    steps: Sequence[int]
    times: Sequence[str]
    values: dict[str, "array[float]"]

    @property
    def size(self) -> int:
        """Approximate size in memory, in bytes."""
        return 100 * len(self.steps) + sum(8 * len(column) + 200 for column in self.values.values())


class Series(Schema):
    """Values of one metric by step."""

    name: str
    values: list[float | None]
    """Value of each step, or the mean of each bucket if the response is bucketed. null if there is no value."""
    min: list[float | None] | None = None
    """Minimum of each bucket."""
    max: list[float | None] | None = None
    """Maximum of each bucket."""


class MetricsAnswer(Schema):
    """Metrics of a run by step."""

    namespace: str
    uid: str
    steps: list[int]
    """Steps, or the last step of each bucket if the response is bucketed."""
    times: list[str]
    series: list[Series]
    bucketed: bool
    """True if each point combines several steps, because there are more steps than `points`."""
    total_steps: int
    """Number of steps in the range."""
    is_stale: bool
    """True if S3 does not respond and these are the metrics that were read last."""


class _Table:
    """Rows by step. Numbers are stored in arrays, because a dict per line would take ten times as much memory as the
    line's text.
    """

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.times: list[str] = []
        self.values: dict[str, array[float]] = {}

    def put(self, line: Line, *, replaces: bool) -> None:
        """Add a line. If `replaces` is True, removes the values of earlier lines for the same step. Raises
        TooManyValues.
        """
        row = self.rows.setdefault(line["step"], len(self.rows))
        if row == len(self.times):
            self.times.append("")
            _check_size(len(self.rows), len(self.values))
        elif replaces:
            for column in self.values.values():
                if row < len(column):
                    column[row] = math.nan
        self.times[row] = line["time"]
        for name, value in line.items():
            if name in OTHERS:
                continue
            if name not in self.values:
                if len(self.values) >= MAX_NAMES:
                    continue
                self.values[name] = array("d")
                _check_size(len(self.rows), len(self.values))
            column = self.values[name]
            missing = row + 1 - len(column)
            if missing > 0:
                column.extend([math.nan] * missing)
            column[row] = value

    def value(self, name: str, step: int) -> float:
        """Return the value of a metric at a step, or NaN if there is none."""
        row, column = self.rows.get(step), self.values.get(name)
        return column[row] if row is not None and column is not None and row < len(column) else math.nan


def read_columns(parts: Iterable[bytes]) -> Columns:
    """Return the columns of a run's files, merged as described in `rlrun.storage.metric_files`. Raises TooManyValues.
    Invalid lines are skipped, because a tenant's process writes the files.
    """
    trained, measured = _Table(), _Table()
    for part in parts:
        for line in numeric_lines(part):
            if TRAINED in line:
                trained.put(line, replaces=True)
            else:
                measured.put(line, replaces=False)
    steps = sorted({*trained.rows, *measured.rows})
    names = sorted({*trained.values, *measured.values})[:MAX_NAMES]
    _check_size(len(steps), len(names))
    values: dict[str, array[float]] = {}
    for name in names:
        first = array("d", (trained.value(name, step) for step in steps))
        if name in measured.values:
            first = array(
                "d", (measured.value(name, s) if math.isnan(v) else v for s, v in zip(steps, first, strict=True))
            )
        values[name] = first
    return Columns(steps, [_time(step, trained, measured) for step in steps], values)


def _check_size(rows: int, names: int) -> None:
    """Raise TooManyValues for columns that would be too large."""
    if rows > MAX_ROWS or rows * names > MAX_CELLS:
        raise TooManyValues


def _time(step: int, trained: _Table, measured: _Table) -> str:
    table = trained if step in trained.rows else measured
    return table.times[table.rows[step]]


def select_names(columns: Columns, wanted: Sequence[str]) -> list[str]:
    """Return the metric names that `wanted` selects, or all names if `wanted` is empty. `prefix*` selects the names
    with a prefix.
    """
    if not wanted:
        return list(columns.values)
    exact = {name for name in wanted if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in wanted if name.endswith("*"))
    return [name for name in columns.values if name in exact or (prefixes and name.startswith(prefixes))]


def thin_columns(columns: Columns, names: Sequence[str], min_step: int, max_step: int, points: int) -> MetricsAnswer:
    """Return the metrics in a range of steps with at most `points` points. The caller sets `namespace`, `uid`
    and `is_stale`.
    """
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
        points = [column[bucket[0]] for bucket in buckets]
        return Series(name=name, values=[None if math.isnan(value) else value for value in points])
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
    # Rounding may turn the largest numbers into infinity.
    return short if math.isfinite(short) else value


def numeric_lines(part: bytes) -> Iterator[Line]:
    """Yield the step, time and numbers of each line. Invalid lines are skipped."""
    for text in io.BytesIO(part):
        try:
            check_limits(text, LINE_LIMITS, "The line")
            # Invalid names and times are dropped below; the rest of the line is kept.
            document = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if not isinstance(document, dict):
            continue
        step = document.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= MAX_STEP:
            continue
        numbers = {name: float(value) for name, value in document.items() if _is_metric(name, value)}
        time = str(document.get("time") or "")[:40].encode("utf-8", "replace").decode()
        yield {**numbers, "step": step, "time": time}


def _is_metric(name: str, value: object) -> bool:
    """Return whether the value is a number with a valid name. A histogram is a list; lone surrogates are invalid."""
    if name in OTHERS or len(name) > MAX_NAME or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        name.encode()
        return math.isfinite(value)
    except (OverflowError, UnicodeEncodeError):
        return False
