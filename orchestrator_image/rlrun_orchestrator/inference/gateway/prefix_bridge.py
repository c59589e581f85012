"""Prompts that keep the exact tokens of the previous turn, built with the engine's own tokenization."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from rlrun_orchestrator.inference.gateway.live_groups import LiveGroup, ServedPolicy
from rlrun_orchestrator.inference.gateway.prefixes import Conversation, Messages, bridge, is_text_only, starts_with
from rlrun_orchestrator.inference.gateway.request_router import NoReplicaAvailable, RequestRouter


class PrefixBridge:
    """Builds prompts from tokens for runs whose turns become one sequence. Disabled, it leaves every chat as it is."""

    def __init__(self, router: RequestRouter, *, enabled: bool) -> None:
        self._router = router
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
        whole = await self._tokens(group, served, requested, messages, generation_prompt=True)
        if whole is None or starts_with(whole, last.tokens):
            return None
        before, until = await asyncio.gather(
            self._tokens(group, served, requested, messages[: covered - 1], generation_prompt=True),
            self._tokens(group, served, requested, messages[:covered], generation_prompt=False),
        )
        return bridge(last.tokens, before, until, whole) if before is not None and until is not None else None

    async def _tokens(
        self,
        group: LiveGroup,
        served: ServedPolicy,
        requested: Mapping[str, Any],
        messages: Messages,
        *,
        generation_prompt: bool,
    ) -> list[int] | None:
        body: dict[str, Any] = {
            "model": served.model,
            "messages": messages,
            "add_generation_prompt": generation_prompt,
        }
        if requested.get("chat_template_kwargs"):
            body["chat_template_kwargs"] = requested["chat_template_kwargs"]
        try:
            status, data = await self._router.send(group, served, "/tokenize", json.dumps(body).encode())
            tokens = json.loads(data)["tokens"] if status == 200 else None
        except (NoReplicaAvailable, ValueError, KeyError, TypeError):
            return None
        return tokens if isinstance(tokens, list) else None
