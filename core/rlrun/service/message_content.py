"""Detects chat content that engines must not receive: URLs that they would fetch and, in training, media."""

from collections.abc import Iterator
from typing import Any

TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "tool_reference"})
"""Types of content parts that vLLM renders as text."""
URL_KEYS = ("image_url", "audio_url", "video_url", "input_image")
"""Keys of parts that may contain URLs, which vLLM would fetch."""
MEDIA_KEYS = (*URL_KEYS, "image_pil", "image_embeds", "input_audio", "audio_embeds", "video_embeds")
"""Keys of parts with content other than text, which vLLM accepts even without a type."""


def refused_content(messages: Any, *, media: bool) -> str | None:
    """Describe the first content that an engine must not receive: its location and kind. Returns None if there is none.

    If `media` is true, images, audio and video are allowed as `data:` URLs, otherwise only text. Messages that do not
    have the format of the OpenAI API are left to the engine.
    """
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        if not isinstance(message, dict):
            continue
        if message.get("audio") and not media:
            return f"messages[{number}].audio is set"
        content = message.get("content")
        for index, part in enumerate(content if isinstance(content, list) else ()):
            place = f"messages[{number}].content[{index}]"
            kind = None if media else _other_type(part)
            if kind is not None:
                return f"{place} is of type {kind}"
            key = _fetched_key(part)
            if key is not None:
                return f"{place}.{key} is not a data: URL"
    return None


def _other_type(part: Any) -> str | None:
    """Return the type of a content part that is not text, or None for text."""
    if not isinstance(part, dict):
        return None
    kind = part.get("type", "text")
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        return str(kind)[:50]
    return next((key for key in MEDIA_KEYS if key in part), None)


def _fetched_key(part: Any) -> str | None:
    """Return the key of a part with a URL that the engine would fetch, or None."""
    if not isinstance(part, dict):
        return None
    return next((key for key in URL_KEYS if any(not url.startswith("data:") for url in _urls(part.get(key)))), None)


def _urls(value: Any) -> Iterator[str]:
    candidates = (value.get("url"), value.get("image_url")) if isinstance(value, dict) else (value,)
    for candidate in candidates:
        if isinstance(candidate, dict):
            yield from _urls(candidate)
        elif isinstance(candidate, str):
            yield candidate
