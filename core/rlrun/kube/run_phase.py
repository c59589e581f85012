"""Reason and message of a run's phase. Does not import the schema, so that `rlrun list` starts fast."""

from collections.abc import Iterable, Mapping
from typing import Any

from rlrun.constants import START_CONDITIONS


def first_unmet_start_condition(conditions: Iterable[Any]) -> Mapping[str, Any] | None:
    """Return the first condition, in the order of START_CONDITIONS, whose status is not True, or None."""
    by_type = {c.get("type"): c for c in conditions if isinstance(c, Mapping)}
    ordered = (by_type[kind] for kind in START_CONDITIONS if kind in by_type)
    return next((c for c in ordered if c.get("status") != "True"), None)


def explain_phase(status: Mapping[str, Any]) -> tuple[str, str]:
    """Return the reason and message of a run's phase. If the status has no reason, they are those of the first start
    condition that is not True, or empty strings if there is none.
    """
    if status.get("reason"):
        return str(status["reason"]), str(status.get("message") or "")
    unmet = first_unmet_start_condition(status.get("conditions") or ()) or {}
    return str(unmet.get("reason") or ""), str(unmet.get("message") or "")
