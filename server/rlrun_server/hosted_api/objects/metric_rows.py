"""Metrics as hosted clients read them: one object per step. Pure."""

import json
import math
from bisect import bisect_left, bisect_right

from rlrun_server.hosted_api.base.wire import Json
from rlrun_server.rest.metrics.metric_columns import Columns

MAX_VALUES = 500_000
"""Numbers of one answer, about 15 MB of JSON."""
MAX_BYTES = 24 * 1024**2
"""Bytes of one answer, about. Each step repeats the names of its metrics, which a tenant has chosen."""
ROW_BYTES = 80
"""Bytes of a step with its time."""
NUMBER_BYTES = 24
"""Bytes of a number with what stands around it."""
TOTAL_TOKENS = "progress/total_tokens"


class TooManyRows(Exception):
    """More numbers than one answer may have. The message says how many steps fit."""


def rows_of(columns: Columns, min_step: int, max_step: int, limit: int | None) -> list[Json]:
    """Return the steps in the range, in order, or with a limit only the newest. Raises TooManyRows."""
    first, last = bisect_left(columns.steps, min_step), bisect_right(columns.steps, max_step)
    if limit is not None:
        first = max(first, last - limit)
    row_bytes = ROW_BYTES + sum(len(json.dumps(name)) + NUMBER_BYTES for name in columns.values)
    fitting = min(MAX_VALUES // max(1, len(columns.values)), MAX_BYTES // row_bytes)
    if last - first > fitting:
        raise TooManyRows(
            f"{last - first} steps of {len(columns.values)} metrics are too many: ask for {fitting} steps"
        )
    return [row_of(columns, at) for at in range(first, last)]


def row_of(columns: Columns, at: int) -> Json:
    """Return one step."""
    numbers = {name: values[at] for name, values in columns.values.items() if not math.isnan(values[at])}
    return {"step": columns.steps[at], "timestamp": columns.times[at], **numbers}


def total_tokens(columns: Columns) -> int:
    """Return the number of tokens that the run has trained on."""
    known = [value for value in columns.values.get(TOTAL_TOKENS, ()) if not math.isnan(value)]
    return int(max(known, default=0.0))
