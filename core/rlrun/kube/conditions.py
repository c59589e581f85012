"""Conditions, messages and times of a status."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from rlrun.api.base.kubernetes_types import Condition
from rlrun.api.run_status import RLRunStatus
from rlrun.constants import START_CONDITIONS

MESSAGE_LIMIT = 2000
"""Maximum length of a message in a status."""


def find_condition(status: RLRunStatus, kind: str) -> Condition | None:
    """Return the condition of that type, if there is one."""
    return next((c for c in status.conditions if c.type == kind), None)


def first_unmet_start_condition(conditions: Iterable[Any]) -> Mapping[str, Any] | None:
    """Return the first condition of a run's start whose status is not True, in the order of the start."""
    by_type = {c.get("type"): c for c in conditions if isinstance(c, Mapping)}
    ordered = (by_type[kind] for kind in START_CONDITIONS if kind in by_type)
    return next((c for c in ordered if c.get("status") != "True"), None)


def explain_phase(status: Mapping[str, Any]) -> tuple[str, str]:
    """Return reason and message of a run's phase, or of the condition for which its start waits; empty without one."""
    if status.get("reason"):
        return str(status["reason"]), str(status.get("message") or "")
    unmet = first_unmet_start_condition(status.get("conditions") or ()) or {}
    return str(unmet.get("reason") or ""), str(unmet.get("message") or "")


def shorten(message: str, limit: int = MESSAGE_LIMIT) -> str:
    """Return the first `limit` characters of the message, whose beginning says what happened."""
    return message if len(message) <= limit else message[: limit - 1] + "…"


def seconds(value: datetime | None, now: datetime) -> float:
    """Return the seconds from `value` to `now`, 0 if `value` is None or later."""
    return max(0.0, (now - value).total_seconds()) if value is not None else 0.0


def parse_time(text: str | None) -> datetime | None:
    """Return the time of a timestamp from the API server, None without one."""
    return datetime.fromisoformat(text) if text else None
