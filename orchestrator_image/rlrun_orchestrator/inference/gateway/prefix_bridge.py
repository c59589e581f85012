"""Prompts that keep the exact tokens of the previous turn, built with the engine's own tokenization."""

import asyncio
from collections.abc import Mapping
from typing import Any

from rlrun_orchestrator.inference.gateway.live_groups import LiveGroup, ServedPolicy
from rlrun_orchestrator.inference.gateway.prefixes import Conversation, Messages, bridge, is_text_only, starts_with
from rlrun_orchestrator.inference.gateway.prompt_tokenizer import PromptTokenizer


class PrefixBridge:
    """Builds prompts from tokens for runs whose turns become one sequence. Disabled, it leaves every chat as it is."""

    def __init__(self, tokenizer: PromptTokenizer, *, enabled: bool) -> None:
        self._tokenizer = tokenizer
        self._enabled = enabled

    async def prompt(
        self, group: LiveGroup, served: ServedPolicy, requested: Mapping[str, Any], last: Conversation, covered: int
    ) -> list[int] | None:
        """Return the token ids to send instead of the messages of `requested`.

        The first `covered` messages are those of `last` and its answer. Returns None if the chat route gives the exact
        prefix anyway, or if the tokens are not certain. Raises GroupClosed.
        """
        if not self._enabled or not last.ended or not is_text_only(requested, last):
            return None
        messages: Messages = requested["messages"]
        whole = await self._tokenizer.chat(group, served, requested, add_generation_prompt=True)
        if whole is None or starts_with(whole, last.tokens):
            return None
        before, until = await asyncio.gather(
            self._tokenizer.chat(
                group, served, requested, messages=messages[: covered - 1], add_generation_prompt=True
            ),
            self._tokenizer.chat(group, served, requested, messages=messages[:covered], add_generation_prompt=False),
        )
        return bridge(last.tokens, before, until, whole) if before is not None and until is not None else None
