"""Helpers for the conditions, messages and times of a status."""

from datetime import datetime

from rlrun.api.base.kubernetes_types import Condition
from rlrun.api.run_status import RLRunStatus

MESSAGE_LIMIT = 2000
"""Maximum length of a message in a status."""


def find_condition(status: RLRunStatus, kind: str) -> Condition | None:
    """Return the condition of that type, or None."""
    return next((c for c in status.conditions if c.type == kind), None)


def shorten(message: str, limit: int = MESSAGE_LIMIT) -> str:
    """Truncate the message to `limit` characters, keeping the beginning."""
    return message if len(message) <= limit else message[: limit - 1] + "…"


def seconds(value: datetime | None, now: datetime) -> float:
    """Return the seconds from `value` to `now`, or 0 if `value` is None or later than `now`."""
    return max(0.0, (now - value).total_seconds()) if value is not None else 0.0


def parse_time(text: str | None) -> datetime | None:
    """Parse a timestamp from the API server. Returns None if it is missing."""
    return datetime.fromisoformat(text) if text else None
