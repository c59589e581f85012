"""Exact token prefixes for conversations: what the next turn's prompt must begin with, and how to get there. Pure.

A chat request sends texts, and the engine's tokenizer need not cut the model's own answer into the tokens that the
model drew. The gateway has those tokens. Where the template's rendering of a longer conversation does not begin with
them, it can be bridged: the exact tokens, then what the template puts behind the answer. That is done only where each
part is proven by the engine's own tokenization; in every other case the chat goes the ordinary way and the training
sequence is cut there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun_orchestrator.trajectories import Turn

Messages = list[Any]

NEEDS_CHAT = (
    "tools", "tool_choice", "functions", "documents", "mm_processor_kwargs", "reasoning_effort",
    "continue_final_message", "top_logprobs",
)  # fmt: skip
"""Fields whose effect comes from the engine's chat route itself."""
MESSAGE_NEEDS_CHAT = ("tool_calls", "function_call", "reasoning", "reasoning_content", "audio")
"""Parts of a message that a template may render in its own way."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One chat that the engine answered."""

    messages: Messages
    """What it was asked."""
    answer: Mapping[str, Any]
    """The assistant's message."""
    tokens: list[int]
    """Prompt and completion, as the engine saw and drew them."""
    ended: bool
    """The last token is the one with which the model ends its turn."""


def conversation(asked: Mapping[str, Any], choice: Mapping[str, Any], turn: Turn) -> Conversation:
    """What a later request may continue: `choice` is the only one of the answer to `asked`."""
    # A token id as the reason is one more end-of-turn token of the model, unless the client itself asked for it.
    reason = choice.get("stop_reason")
    usual = reason is None or (isinstance(reason, int) and not asked.get("stop_token_ids"))
    ended = turn.finish_reason == "stop" and usual and bool(turn.completion_ids)
    return Conversation(asked["messages"], choice.get("message") or {}, turn.prompt_ids + turn.completion_ids, ended)


def continued(messages: Any, last: Conversation) -> int | None:
    """How many of `messages` the last chat covers, its answer included; None where they don't continue it."""
    count = len(last.messages)
    if not isinstance(messages, list) or len(messages) < count + 2 or messages[:count] != last.messages:
        return None
    answer = messages[count]
    if not isinstance(answer, dict) or answer.get("role") != "assistant":
        return None
    same = answer.get("content") == last.answer.get("content")
    return count + 1 if same and _calls(answer) == _calls(last.answer) else None


def only_text(asked: Mapping[str, Any], last: Conversation) -> bool:
    """Whether nothing of the request needs the engine's chat route, so that its tokens alone say everything."""
    if any(asked.get(name) for name in NEEDS_CHAT) or asked.get("add_generation_prompt") is False:
        return False
    return all(_plain(message) for message in [*asked["messages"], last.answer])


def bridge(exact: Sequence[int], before: Sequence[int], until: Sequence[int], whole: Sequence[int]) -> list[int] | None:
    """The prompt that begins with `exact` and goes on as the template does, or None where that is not certain.

    Token ids of the template's rendering: `before` up to the assistant's answer (generation prompt included), `until`
    with the answer, `whole` with all that follows. The last token of `exact` ended the model's turn; behind the answer
    the template has to put the same one, exactly once.
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
    """Whether `ids` begin with exactly these tokens."""
    return len(ids) >= len(prefix) and list(ids[: len(prefix)]) == list(prefix)


def _plain(message: Any) -> bool:
    if not isinstance(message, dict) or not isinstance(message.get("content"), str):
        return False
    return not any(message.get(name) for name in MESSAGE_NEEDS_CHAT)


def _calls(message: Mapping[str, Any]) -> Any:
    return message.get("tool_calls") or None
