"""Reads the number of tokens in a vLLM response from its object `usage`, without parsing the whole response.

In vLLM 0.32, `usage` follows the choices, and in a chat the token ids of the prompt follow `usage`. A stream has it in
the last event before `[DONE]`, if the request sets `stream_options.include_usage`; the gateway requests no streams.
`prompt_tokens_details` needs `--enable-prompt-tokens-details`. Sampled text cannot be mistaken for the object: JSON
escapes the quotes in a text, and as a token among log-probabilities the name has a number as its value.

Tokens are not counted if the response has no `usage`, for example because it was aborted, or if more than MAX_SEARCHED
bytes follow `usage`.
"""

import json
from collections.abc import Mapping
from typing import Any

NAME = b'"usage":'
MAX_OBJECT = 1024
"""Maximum size in bytes of the object."""
MAX_SEARCHED = 4 * 1024**2
"""Number of bytes searched at the end of each part of a response. Each token id of a prompt takes at most about 8
bytes.
"""
_KEPT = len(NAME) + MAX_OBJECT


class ResponseUsage:
    """Reader of a response's parts, which keeps at most about MAX_OBJECT bytes of them."""

    def __init__(self) -> None:
        self.tokens: Mapping[str, int] = {}
        """Number of tokens by kind in the last `usage` so far, or empty if there was none."""
        self._end = b""

    def feed(self, part: bytes) -> None:
        """Read the next part of the response."""
        text = self._end + part[-MAX_SEARCHED:]
        self._end = text[-_KEPT:]
        place = text.rfind(NAME)
        if place >= 0:
            self.tokens = _tokens(text[place + len(NAME) : place + _KEPT]) or self.tokens


def _tokens(text: bytes) -> Mapping[str, int] | None:
    """Return the numbers of tokens in the JSON object at the start of `text`, or None if the object is not complete."""
    try:
        usage, _ = json.JSONDecoder().raw_decode(text.decode("utf-8", "replace").lstrip())
    except (ValueError, RecursionError):
        return None
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    found = {"prompt": usage.get("prompt_tokens"), "cached": cached, "sampled": usage.get("completion_tokens")}
    return {kind: _count(value) for kind, value in found.items()}


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0
