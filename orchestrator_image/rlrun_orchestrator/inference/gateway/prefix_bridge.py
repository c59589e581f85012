"""Token prompts that continue a conversation. The earlier tokens stay exactly as sampled, and the new messages have the
tokens of the engine's rendering of the chat.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlrun_orchestrator.data.trajectories import Turn, common_length
from rlrun_orchestrator.inference.gateway.conversations import Conversation, Conversations, prefix_keys
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroup, ServedPolicy
from rlrun_orchestrator.inference.gateway.prefixes import (
    bridge,
    continue_exactly,
    has_ended,
    has_prefix,
    is_open_ended,
    sampled_text,
    shown_messages,
)
from rlrun_orchestrator.inference.gateway.prompt_tokenizer import PromptTokenizer


@dataclass(frozen=True, slots=True)
class Continuation:
    """Prompt of a chat that continues a conversation."""

    last: Conversation
    prompt: "array[int] | None" = None
    """Tokens to send with the messages. If None, the engine renders the messages."""
    rendered: "array[int]" = field(default_factory=lambda: array("i"))
    """Tokens of the messages as rendered by the template, including reasoning that the client omitted."""


class PrefixBridge:
    """Builds token prompts for runs whose turns become one sequence. If `enabled` is False, chats are not changed."""

    def __init__(self, tokenizer: PromptTokenizer, *, enabled: bool) -> None:
        self._tokenizer = tokenizer
        self._enabled = enabled

    async def continuation(
        self, group: LiveGroup, served: ServedPolicy, requested: Mapping[str, Any], known: Conversations
    ) -> Continuation | None:
        """Return the longest `known` conversation that this chat continues, with the prompt that continues it. Returns
        None if there is no such conversation.

        Sends one request to the engine, and a second one if the template's rendering of the last answer differs from
        the sampled tokens. Raises GroupClosed.
        """
        last = known.longest_continued(requested["messages"])
        if last is None or not self._enabled or not is_open_ended(requested):
            return None if last is None else Continuation(last)
        shown = shown_messages(requested["messages"], last)
        chat = {**requested, "messages": shown}
        whole = await self._tokenizer.chat(group, served, chat)
        if whole is None or (shown == requested["messages"] and has_prefix(whole, last.tokens)):
            return Continuation(last)
        prompt = continue_exactly(last, whole)
        if prompt is None and last.ended:
            answered = {**chat, "messages": shown[: last.count + 1], "add_generation_prompt": False}
            until = await self._tokenizer.chat_with_names(group, served, answered)
            prompt = None if until is None else bridge(last, until, whole)
        return Continuation(last, prompt, whole)


def conversation(
    requested: Mapping[str, Any],
    choice: Mapping[str, Any],
    turn: Turn,
    continuation: Continuation | None = None,
    *,
    arrival: int = 0,
) -> Conversation:
    """Return the conversation that a later request may continue. `choice` is the only choice in the response."""
    messages = requested["messages"]
    made = Conversation(
        key=prefix_keys(messages)[-1],
        count=len(messages),
        answer=choice.get("message") or {},
        turn=turn,
        ended=has_ended(requested, choice, turn),
        sampled_text=sampled_text(_texts(choice)[:-1]),
        arrival=arrival,
    )
    if continuation is not None and turn.prompt_ids == continuation.prompt:
        made.before = continuation.last
        made.prefix_length = common_length(continuation.last.prompt_ids, continuation.rendered)
        made.suffix = continuation.rendered[made.prefix_length :]
    return made


def _texts(choice: Mapping[str, Any]) -> list[str]:
    """Return the texts of the sampled tokens. A token without text contains a character that no template renders."""
    tokens = (choice.get("logprobs") or {}).get("content") or []
    return [str(token.get("token", "\N{REPLACEMENT CHARACTER}")) for token in tokens]
