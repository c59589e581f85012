"""Durations of a rollout's phases, from verifiers' timing."""

import math
from collections.abc import Mapping
from typing import Any


def milliseconds(timing: Any, phase: str) -> float | None:
    """Return the duration of a phase (`generation`, `scoring`). None if verifiers did not measure it."""
    span = timing.get(phase) if isinstance(timing, Mapping) else None
    if not isinstance(span, Mapping):
        return None
    start, end = span.get("start"), span.get("end")
    if not isinstance(start, int | float) or not isinstance(end, int | float) or not 0.0 < start <= end:
        return None
    found = 1000.0 * (end - start)
    return found if math.isfinite(found) else None
