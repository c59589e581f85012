"""Adapts oversampling_factor and max_async_level in files in which the two conflict.

In this schema, max_async_level must be at least oversampling_factor. The hosted service also accepts files with a lower
max_async_level: its clients no longer send the key, and its server discards it. prime-rl does not have the rule either.
"""

import math
from typing import Any

from rlrun.api.base.field_errors import FieldProblem
from rlrun.api.run import RLRunSpec

MOST_OVERSAMPLING = 16
"""Maximum oversampling_factor of a run."""
LARGEST_NUMBER = 2**53
"""Maximum batch_size for which an oversampling_factor is computed, far above any valid value."""
MOST_STEPS_AHEAD = 32
"""Maximum max_async_level of a run."""


def fit_async_level(table: dict[str, Any]) -> FieldProblem | None:
    """Make oversampling_factor, max_async_level and max_off_policy_steps of a run consistent. Returns a note if a value
    in the file was changed.

    An oversampling_factor in the table is kept, and max_async_level is raised to fit. If there is none, a
    max_async_level below the default factor lowers the factor, which affects only speed. A max_async_level above the
    default of max_off_policy_steps raises that default. Validation reports values that are not numbers or out of range.
    """
    note = _fit_level(table)
    level, oldest = table.get("max_async_level"), RLRunSpec.model_fields["max_off_policy_steps"].default
    if level is not None and _is_number(level) and oldest < level <= MOST_STEPS_AHEAD:
        table.setdefault("max_off_policy_steps", level)
    return note


def _fit_level(table: dict[str, Any]) -> FieldProblem | None:
    fields = RLRunSpec.model_fields
    factor = table.get("oversampling_factor", fields["oversampling_factor"].default)
    level = table.get("max_async_level", fields["max_async_level"].default)
    if not _is_number(factor) or not _is_number(level) or not 1 <= factor <= MOST_OVERSAMPLING:
        return None
    if not 0 <= level < factor or (level == 0 and factor == 1):
        return None
    if "oversampling_factor" not in table:
        table["oversampling_factor"] = float(max(level, 1))
        return None
    was_set = "max_async_level" in table
    table["max_async_level"] = math.ceil(factor)
    if not was_set:
        return None
    message = (
        f"is raised from {level} to {math.ceil(factor)}, because max_async_level must be at least oversampling_factor"
    )
    return FieldProblem("max_async_level", message)


def oversampling_for(inflight: Any, table: dict[str, Any]) -> float | None:
    """Return the oversampling_factor that gives `inflight` rollouts in flight, or None if no valid factor does."""
    batch = table.get("batch_size", RLRunSpec.model_fields["batch_size"].default)
    if (
        not _is_number(batch)
        or not 0 < batch <= LARGEST_NUMBER
        or not isinstance(inflight, int)
        or isinstance(inflight, bool)
    ):
        return None
    return inflight / batch if batch <= inflight <= MOST_OVERSAMPLING * batch else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
