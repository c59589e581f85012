"""Token ids of prompts, from the tokenizer and the chat template of the engine that serves the group."""

import json
from collections.abc import Mapping
from typing import Any

from rlrun_orchestrator.inference.gateway.live_groups import LiveGroup, ServedPolicy
from rlrun_orchestrator.inference.gateway.request_router import NoReplicaAvailable, RequestRouter
from rlrun_orchestrator.inference.gateway.sampling_rules import CompletionKind, without_strict

TEMPLATE_FIELDS = ("documents", "reasoning_effort")
"""Fields of a chat that the engine passes to its template. `/tokenize` has none of them."""


class PromptTokenizer:
    """Client of the engines' `/tokenize`. Its methods raise GroupClosed."""

    def __init__(self, router: RequestRouter) -> None:
        self._router = router

    async def chat(
        self, group: LiveGroup, served: ServedPolicy, requested: Mapping[str, Any], **changes: Any
    ) -> list[int] | None:
        """Return the token ids of a chat's prompt, None if the engine does not tell. `changes` replace its fields."""
        requested = {**requested, **changes}
        body: dict[str, Any] = {
            "messages": requested["messages"],
            "add_generation_prompt": requested.get("add_generation_prompt", True),
        }
        if isinstance(requested.get("tools"), list):
            body["tools"] = [without_strict(tool) for tool in requested["tools"]]
        if requested.get("continue_final_message"):
            body["continue_final_message"] = True
        template = {name: requested[name] for name in TEMPLATE_FIELDS if requested.get(name)}
        if template or requested.get("chat_template_kwargs"):
            body["chat_template_kwargs"] = {**(requested.get("chat_template_kwargs") or {}), **template}
        return await self._tokens(group, served, body)

    async def count(
        self, group: LiveGroup, served: ServedPolicy, kind: CompletionKind, requested: Mapping[str, Any]
    ) -> int | None:
        """Return the length of a request's prompt, None if the engine does not tell."""
        if kind is CompletionKind.chat:
            tokens = await self.chat(group, served, requested)
        else:
            special = requested.get("add_special_tokens", True)
            tokens = await self._tokens(group, served, {"prompt": requested["prompt"], "add_special_tokens": special})
        return None if tokens is None else len(tokens)

    async def _tokens(self, group: LiveGroup, served: ServedPolicy, body: dict[str, Any]) -> list[int] | None:
        try:
            status, data = await self._router.send(
                group, served, "/tokenize", json.dumps({"model": served.model, **body}).encode()
            )
            tokens = json.loads(data)["tokens"] if status == 200 else None
        except (NoReplicaAvailable, ValueError, KeyError, TypeError):
            return None
        return tokens if isinstance(tokens, list) else None
