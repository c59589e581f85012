"""Records the chats of a rollout, and finds the chat that a request continues.

Chats of one rollout form a tree: a client may continue any of them, several times. All chats are kept, up to a
memory limit, so each chat stores only the tokens that the chat before it lacks.
"""

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any

from rlrun.api.base.received import InputInvalid, read_fast

from rlrun_orchestrator.data.trajectories import Turn

Messages = Sequence[Any]

MAX_CHAT_BYTES = 32 * 1024**2
"""Maximum memory in bytes of the chats that a rollout keeps so that later chats can continue them. Recorded turns are
not counted.
"""
TOKEN_BYTES = 4
"""Memory of a token id in bytes."""
CHAT_BYTES = 1024
"""Estimated memory of a chat in bytes, excluding its tokens and texts."""
REASONING = ("reasoning", "reasoning_content")
"""Fields with the reasoning of an assistant's message. vLLM writes and reads the first one."""


@dataclass(eq=False, slots=True)
class Conversation:
    """One completed chat."""

    key: bytes
    """Digest of the request's messages, the last of their `prefix_keys`."""
    count: int
    """Number of messages of the request."""
    answer: Mapping[str, Any]
    """The assistant's message."""
    turn: Turn
    ended: bool
    """True if the last token is the model's end-of-turn token."""
    sampled_text: str = ""
    """Text of the sampled tokens without special tokens and without the last token. A parser may omit a part of it from
    `answer`.
    """
    before: "Conversation | None" = None
    """Earlier chat whose exact tokens the gateway put at the start of this chat's prompt, or None."""
    prefix_length: int = 0
    """Length of the common prefix of the template's renderings of this chat and `before`."""
    suffix: "array[int]" = field(default_factory=lambda: array("i"))
    """Tokens of the template's rendering after the common prefix, if there is a `before`."""
    arrival: int = 0
    """Arrival number of the request."""
    continuations: int = 0
    """Number of recorded chats whose `before` is this chat."""

    @property
    def size(self) -> int:
        """Approximate memory in bytes, without the turn."""
        texts = getsizeof(str(self.answer)) + getsizeof(self.sampled_text)
        return CHAT_BYTES + TOKEN_BYTES * len(self.suffix) + texts

    @property
    def tokens(self) -> "array[int]":
        """Exact tokens of prompt and completion."""
        return self.turn.prompt_ids + self.turn.completion_ids

    @property
    def prompt_ids(self) -> "array[int]":
        """Tokens of the chat as the template renders it. The turn's own prompt may contain sampled tokens instead."""
        parts, missing, one = list["array[int]"](), self.prefix_length + len(self.suffix), self
        while one.before is not None:
            if missing > one.prefix_length:
                parts.append(one.suffix[: missing - one.prefix_length])
                missing = one.prefix_length
            one = one.before
        if not parts:
            return self.turn.prompt_ids
        ids = one.turn.prompt_ids[:missing]
        for part in reversed(parts):
            ids.extend(part)
        return ids


class Conversations:
    """Recorded chats of one rollout, found by messages that continue them."""

    def __init__(self) -> None:
        self._by_answer: dict[bytes, list[Conversation]] = {}
        self._size = 0
        """Memory of all chats in bytes, excluding the turns."""

    def __iter__(self) -> Iterator[Conversation]:
        return (one for found in self._by_answer.values() for one in found)

    def longest_continued(self, messages: Messages) -> Conversation | None:
        """Return the longest recorded chat that `messages` continue, or None. Of several equally long chats, returns
        the newest.
        """
        if not self._by_answer:
            return None
        keys = prefix_keys(messages)
        for count in range(len(messages) - 2, 0, -1):
            message = messages[count]
            if not isinstance(message, dict) or message.get("role") != "assistant":
                continue
            answered = self._by_answer.get(_answer_key(keys[count], message), ())
            found = [one for one in answered if _has_reasoning(message, one.answer)]
            if found:
                return max(found, key=lambda one: one.arrival)
        return None

    def add(self, made: Conversation) -> None:
        """Record a chat. Above the memory limit, drops the oldest chats that no recorded chat continues."""
        self._by_answer.setdefault(_answer_key(made.key, made.answer), []).append(made)
        self._size += made.size
        if made.before is not None:
            made.before.continuations += 1
        # A chat that continues a dropped one becomes a separate sequence.
        while self._size > MAX_CHAT_BYTES:
            unneeded = [one for one in self if not one.continuations and one is not made]
            if not unneeded:
                return
            self._drop(min(unneeded, key=lambda one: one.arrival))

    def _drop(self, one: Conversation) -> None:
        self._size -= one.size
        key = _answer_key(one.key, one.answer)
        self._by_answer[key].remove(one)
        if not self._by_answer[key]:
            del self._by_answer[key]
        if one.before is not None:
            one.before.continuations -= 1


def prefix_keys(messages: Messages) -> list[bytes]:
    """Return one digest per prefix of the messages, from the empty prefix to all messages. Equal prefixes have equal
    digests.
    """
    keys = [b""]
    for message in messages:
        keys.append(_next_key(keys[-1], message))
    return keys


def reasoning_of(message: Mapping[str, Any]) -> str:
    """Return the reasoning of an assistant's message, or an empty string if it has none."""
    return next((str(message[name]) for name in REASONING if message.get(name)), "")


def calls_of(message: Mapping[str, Any]) -> list[Any]:
    """Return the tool calls of a message in comparable form, because clients reformat arguments."""
    calls = message.get("tool_calls") or ([message["function_call"]] if message.get("function_call") else [])
    return [_call(call) for call in calls] if isinstance(calls, list) else [calls]


def _next_key(key: bytes, value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(key + text.encode(), digest_size=16).digest()


def _answer_key(key: bytes, message: Mapping[str, Any]) -> bytes:
    """Return a digest of messages and their answer, which is the same for a client's copy of the answer.

    The digest excludes reasoning, which clients may omit. Any other difference changes the conversation.
    """
    return _next_key(key, [message.get("content") or "", calls_of(message)])


def _has_reasoning(message: Mapping[str, Any], answer: Mapping[str, Any]) -> bool:
    """Return True if a client's message has the answer's reasoning, or no field for reasoning."""
    return not any(name in message for name in REASONING) or reasoning_of(message) == reasoning_of(answer)


def _call(call: Any) -> Any:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        # Text other than JSON is compared as is.
        with suppress(InputInvalid):
            arguments = json.dumps(read_fast(arguments), sort_keys=True)
    return call.get("id"), function.get("name"), arguments
