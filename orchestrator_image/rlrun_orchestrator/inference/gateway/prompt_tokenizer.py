"""Token ids of prompts, from the tokenizer and the chat template of the engine that serves the group."""

import json
from array import array
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rlrun.api.base.received import ENGINE_LIMITS, read_fast
from rlrun.service.errors import ProblemError

from rlrun_orchestrator.data.trajectories import token_array
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroup, ServedPolicy
from rlrun_orchestrator.inference.gateway.prefixes import RenderedChat
from rlrun_orchestrator.inference.gateway.request_router import NoReplicaAvailable, RequestRouter
from rlrun_orchestrator.inference.gateway.sampling_rules import CompletionKind, without_strict

TEMPLATE_FIELDS = ("documents", "reasoning_effort")
"""Fields of a chat that the engine passes to its template. `/tokenize` accepts none of them."""


class PromptTokenizer:
    """Client of the engines' `/tokenize`. Its methods raise GroupClosed."""

    def __init__(self, router: RequestRouter) -> None:
        self._router = router

    async def chat(self, group: LiveGroup, served: ServedPolicy, requested: Mapping[str, Any]) -> "array[int] | None":
        """Return the token ids of a chat's prompt, or None if the engine does not return them."""
        return _tokens(await self._ask(group, served, _chat_body(requested)))

    async def chat_with_names(
        self, group: LiveGroup, served: ServedPolicy, requested: Mapping[str, Any]
    ) -> RenderedChat | None:
        """Return the tokens of a chat's prompt with their ids and names, or None if the engine does not return them."""
        answer = await self._ask(group, served, _chat_body(requested) | {"return_token_strs": True})
        ids, names = _tokens(answer), answer.get("token_strs")
        if ids is None or not isinstance(names, list) or len(names) != len(ids):
            return None
        return RenderedChat(ids, [str(name) for name in names])

    async def count(
        self, group: LiveGroup, served: ServedPolicy, kind: CompletionKind, requested: Mapping[str, Any]
    ) -> int | None:
        """Return the length of a request's prompt, or None if the engine does not return it."""
        if kind is CompletionKind.chat:
            body = _chat_body(requested)
        else:
            special = requested.get("add_special_tokens", True)
            body = {"prompt": requested["prompt"], "add_special_tokens": special}
        tokens = _tokens(await self._ask(group, served, body))
        return None if tokens is None else len(tokens)

    async def _ask(self, group: LiveGroup, served: ServedPolicy, body: dict[str, Any]) -> dict[str, Any]:
        try:
            status, data = await self._router.send(
                group, served, "/tokenize", json.dumps({"model": served.model, **body}).encode()
            )
            answer = read_fast(data, "the answer", ENGINE_LIMITS) if status == 200 else {}
        except (NoReplicaAvailable, ProblemError, ValueError):
            return {}
        return answer if isinstance(answer, dict) else {}


def _chat_body(requested: Mapping[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {
        "messages": requested["messages"],
        "add_generation_prompt": requested.get("add_generation_prompt", True),
    }
    if isinstance(requested.get("tools"), list):
        body["tools"] = [without_strict(tool) for tool in requested["tools"]]
    if requested.get("continue_final_message"):
        body["continue_final_message"] = True
    fields = {name: requested[name] for name in TEMPLATE_FIELDS if requested.get(name)}
    # The chat route derives this variable, too.
    effort = fields.get("reasoning_effort")
    derived = {"enable_thinking": effort != "none"} if effort else {}
    variables = {**derived, **(requested.get("chat_template_kwargs") or {}), **fields}
    if variables:
        body["chat_template_kwargs"] = variables
    return body


def _tokens(answer: Mapping[str, Any]) -> "array[int] | None":
    tokens = answer.get("tokens")
    if not isinstance(tokens, list):
        return None
    with suppress(TypeError, OverflowError):
        return token_array(tokens)
    return None
