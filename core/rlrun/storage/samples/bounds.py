"""Limits the size of a record. Long texts keep their beginning and end, and the field `cut` lists what was removed."""

import json
from typing import Any

from rlrun.protocol.problem import Problem
from rlrun.storage.samples.record import MAX_RECORD_BYTES, Cut, Message, SampleRecord

MAX_MESSAGES = 64
MAX_TEXT = 64 * 1024
"""Maximum number of characters of a text in a message."""
MIN_TEXT = 1024
"""Lowest limit per text in characters. If a record is too large even with this limit, its conversations are stored as
plain text.
"""
MAX_ANSWER = 8 * 1024
MAX_INFO = 16 * 1024
MAX_ERROR = 4 * 1024
MAX_CUTS = 64


def cut_text(text: str, limit: int) -> str:
    """Shorten a text of more than `limit` characters to its beginning and end, with a note in between."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    return f"{text[:head]}\n[... {len(text) - limit:,} characters are not stored ...]\n{text[len(text) - tail :]}"


def bounded_line(record: SampleRecord) -> bytes:
    """Return the record as a line of at most MAX_RECORD_BYTES, shortened if necessary."""
    within = _within_field_limits(record)
    limit = MAX_TEXT
    if len(line := _line(within)) <= limit:
        # No text in the record can be longer.
        return line
    while True:
        shortened = _with_texts_of(within, limit)
        line = _line(shortened)
        if len(line) <= MAX_RECORD_BYTES:
            return line
        if limit <= MIN_TEXT:
            return _line(_as_plain_text(within, MIN_TEXT))
        # Halving the limit usually suffices; the loop ends after six rounds.
        limit //= 2


def _line(record: SampleRecord) -> bytes:
    try:
        return record.to_line()
    except ValueError:
        # JSON may escape half of a surrogate pair, which UTF-8 cannot encode.
        return SampleRecord.model_validate(_without_surrogates(record.model_dump())).to_line()


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(entry) for key, entry in value.items()}
    return [_without_surrogates(entry) for entry in value] if isinstance(value, list) else value


def _within_field_limits(record: SampleRecord) -> SampleRecord:
    cuts = list(record.cut)
    changes: dict[str, Any] = {}
    for name in ("prompt", "completion"):
        messages: list[Message] = getattr(record, name)
        if len(messages) > MAX_MESSAGES:
            removed = len(messages) - MAX_MESSAGES
            changes[name] = [*messages[: MAX_MESSAGES // 2], *messages[-MAX_MESSAGES // 2 :]]
            cuts.append(Cut(field=name, removed=removed))
    for name, limit in (("answer", MAX_ANSWER), ("info", MAX_INFO)):
        text = _text_of(getattr(record, name))
        if len(text) > limit:
            changes[name] = cut_text(text, limit)
            cuts.append(Cut(field=name, removed=len(text) - limit))
    if record.error is not None and len(record.error.message) > MAX_ERROR:
        cuts.append(Cut(field="error.message", removed=len(record.error.message) - MAX_ERROR))
        changes["error"] = Problem(reason=record.error.reason, message=cut_text(record.error.message, MAX_ERROR))
    return record.model_copy(update={**changes, "cut": cuts}) if changes else record


def _text_of(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _with_texts_of(record: SampleRecord, limit: int) -> SampleRecord:
    cuts: list[Cut] = []
    prompt = _cut_leaves(record.prompt, limit, "prompt", cuts)
    completion = _cut_leaves(record.completion, limit, "completion", cuts)
    if not cuts:
        return record
    update = {"prompt": prompt, "completion": completion, "cut": [*record.cut, *cuts][:MAX_CUTS]}
    return record.model_copy(update=update)


def _cut_leaves(value: Any, limit: int, path: str, cuts: list[Cut]) -> Any:
    if isinstance(value, str):
        if len(value) <= limit:
            return value
        cuts.append(Cut(field=path[:128], removed=len(value) - limit))
        return cut_text(value, limit)
    if isinstance(value, dict):
        return {key: _cut_leaves(entry, limit, f"{path}.{key}", cuts) for key, entry in value.items()}
    if isinstance(value, list):
        return [_cut_leaves(entry, limit, f"{path}.{number}", cuts) for number, entry in enumerate(value)]
    return value


def _as_plain_text(record: SampleRecord, limit: int) -> SampleRecord:
    """Return the record without metrics and rewards, and with each long conversation as one message.

    Used for a record with too many small parts to shorten each of them.
    """
    changes: dict[str, Any] = {"metrics": {}, "rewards": {}}
    cuts = [Cut(field=name, removed=len(getattr(record, name))) for name in changes if getattr(record, name)]
    for name, role in (("prompt", "user"), ("completion", "assistant")):
        text = _text_of(getattr(record, name))
        if len(text) > limit:
            cuts.append(Cut(field=name, removed=len(text) - limit))
            changes[name] = [{"role": role, "content": cut_text(text, limit)}]
    return record.model_copy(update={**changes, "cut": [*record.cut, *cuts][:MAX_CUTS]})
