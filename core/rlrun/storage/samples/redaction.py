"""Redacts fields of a record before it is stored."""

from collections.abc import Sequence
from typing import Any

from rlrun.protocol.problem import Problem
from rlrun.storage.samples.record import Message, SampleRecord

REDACTED = "[redacted]"
PLAIN_KEYS = frozenset({"role", "type"})
"""Keys of a message whose values contain no user text."""


def redact(record: SampleRecord, fields: Sequence[str]) -> SampleRecord:
    """Replace these fields of the record with `[redacted]`.

    `prompt` and `completion` keep the number and roles of their messages, `error` keeps its reason. `info.user.name`
    redacts one entry of `info`, or of each item if `info` or `user` is a list.
    """
    changes: dict[str, Any] = {}
    for field in fields:
        head, *path = field.split(".")
        before = changes.get(head, getattr(record, head))
        after = _redact_value(head, before, path)
        if after != before:
            changes[head] = after
    hit = [field for field in fields if field.partition(".")[0] in changes]
    return record.model_copy(update={**changes, "redacted": hit}) if changes else record


def _redact_value(head: str, value: Any, path: Sequence[str]) -> Any:
    if value is None or value == []:
        return value
    if head in ("prompt", "completion"):
        return [_redacted_message(message) for message in value]
    if head == "error":
        return Problem(reason=value.reason, message=REDACTED)
    return _redacted_entry(value, path)


def _redacted_message(message: Message) -> Message:
    return {key: value if key in PLAIN_KEYS else REDACTED for key, value in message.items()}


def _redacted_entry(value: Any, path: Sequence[str]) -> Any:
    if not path or isinstance(value, str):
        # The text may be JSON that contains the entry.
        return REDACTED
    if isinstance(value, list):
        return [_redacted_entry(entry, path) if isinstance(entry, dict | list | str) else entry for entry in value]
    if not isinstance(value, dict) or path[0] not in value:
        return value
    return {**value, path[0]: _redacted_entry(value[path[0]], path[1:])}
