"""Exact token prefixes of conversations: the tokens that the next prompt must begin with, and how to build it. Pure.

A chat request contains text, and the engine's tokenizer may split the model's own answer into other tokens than the
model sampled. The gateway knows the sampled tokens. If the rendered longer conversation does not begin with them, the
prompt is bridged: the exact tokens, followed by what the template puts behind the answer. This is done only where the
engine's own tokenization proves each part. Otherwise the chat is sent as it is, and the training sequence is cut there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun_orchestrator.data.trajectories import Turn

Messages = list[Any]

NEEDS_CHAT = (
    "tools", "tool_choice", "functions", "documents", "mm_processor_kwargs", "reasoning_effort",
    "continue_final_message", "top_logprobs",
)  # fmt: skip
"""Request fields that only the engine's chat route applies."""
MESSAGE_NEEDS_CHAT = ("tool_calls", "function_call", "reasoning", "reasoning_content", "audio")
"""Parts of a message that a template may render in a special way."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One completed chat."""

    messages: Messages
    """Messages of the request."""
    answer: Mapping[str, Any]
    """The assistant's message."""
    tokens: list[int]
    """Exact tokens of prompt and completion."""
    ended: bool
    """True if the last token is the model's end-of-turn token."""


def conversation(requested: Mapping[str, Any], choice: Mapping[str, Any], turn: Turn) -> Conversation:
    """Return the conversation that a later request may continue. `choice` is the response's only one to `requested`."""
    # A token id as the reason is one more end-of-turn token of the model, unless the client itself asked for it.
    reason = choice.get("stop_reason")
    usual = reason is None or (isinstance(reason, int) and not requested.get("stop_token_ids"))
    ended = turn.finish_reason == "stop" and usual and bool(turn.completion_ids)
    return Conversation(
        requested["messages"], choice.get("message") or {}, turn.prompt_ids + turn.completion_ids, ended
    )


def covered_messages(messages: Any, last: Conversation) -> int | None:
    """Return how many of `messages` the last chat covers with its answer, None if they do not continue it."""
    count = len(last.messages)
    if not isinstance(messages, list) or len(messages) < count + 2 or messages[:count] != last.messages:
        return None
    answer = messages[count]
    if not isinstance(answer, dict) or answer.get("role") != "assistant":
        return None
    same = answer.get("content") == last.answer.get("content")
    return count + 1 if same and _calls(answer) == _calls(last.answer) else None


def is_text_only(requested: Mapping[str, Any], last: Conversation) -> bool:
    """Return whether the tokens of the request are equivalent to it: nothing in it needs the engine's chat route."""
    if any(requested.get(name) for name in NEEDS_CHAT) or requested.get("add_generation_prompt") is False:
        return False
    return all(_plain(message) for message in [*requested["messages"], last.answer])


def bridge(exact: Sequence[int], before: Sequence[int], until: Sequence[int], whole: Sequence[int]) -> list[int] | None:
    """Return the prompt that begins with `exact` and continues as the template does, or None if that is not certain.

    The other arguments are token ids of the rendered template: `before` up to the assistant's answer (with the
    generation prompt), `until` with the answer, `whole` with all messages. The last token of `exact` ended the model's
    turn; the template must put the same token behind the answer exactly once.
    """
    if list(whole[: len(until)]) != list(until) or list(until[: len(before)]) != list(before) or not exact:
        return None
    rendered = list(until[len(before) :])
    if rendered.count(exact[-1]) != 1:
        return None
    behind = rendered[rendered.index(exact[-1]) + 1 :]
    following = list(whole[len(until) :])
    return [*exact, *behind, *following] if following else None


def starts_with(ids: Sequence[int], prefix: Sequence[int]) -> bool:
    """Return whether `ids` begin with exactly these tokens."""
    return len(ids) >= len(prefix) and list(ids[: len(prefix)]) == list(prefix)


def _plain(message: Any) -> bool:
    if not isinstance(message, dict) or not isinstance(message.get("content"), str):
        return False
    return not any(message.get(name) for name in MESSAGE_NEEDS_CHAT)


def _calls(message: Mapping[str, Any]) -> Any:
    return message.get("tool_calls") or None
