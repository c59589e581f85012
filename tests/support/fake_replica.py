"""Inference pod as the orchestrator sees it: vLLM's chat and tokenize routes, and the routes of its sidecar."""

import asyncio
import itertools
import json
import random
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from rlrun.protocol.inference import LoadRequest


def chat_answer(model: str, prompt_ids: list[int], completion_ids: list[int], text: str) -> dict[str, Any]:
    """The shape of vLLM 0.32's answer to a chat request with logprobs and return_token_ids."""
    content = [
        {"token": f"t{t}", "logprob": -0.25 - t / 1000, "bytes": [t % 256], "top_logprobs": []} for t in completion_ids
    ]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1790000000,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None, "annotations": None},
                "logprobs": {"content": content},
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": completion_ids,
                "routed_experts": None,
            }
        ],
        "service_tier": None,
        "usage": {"prompt_tokens": len(prompt_ids), "total_tokens": 9, "completion_tokens": len(completion_ids)},
        "prompt_logprobs": None,
        "prompt_token_ids": prompt_ids,
        "kv_transfer_params": None,
    }


@dataclass
class FakeReplica:
    """One inference pod: the engine's API and its sidecar on one port."""

    adapters: set[str] = field(default_factory=set)
    requests: list[dict[str, Any]] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    broken: bool = False
    """Every answer is 500."""
    refuses_loads: bool = False
    ignores_adapters: bool = False
    """Its sidecar found that adapters have no effect."""
    delay: float = 0.002
    jitter: random.Random | None = None
    """Answers take up to ten times the delay, as this says."""
    seeded: bool = False
    """Answers follow from the request's seed, as an engine's do; else each is another one."""
    tokenizations: list[dict[str, Any]] = field(default_factory=list)
    thoughtful: bool = False
    """Its chat template puts something into the prompt once the answer follows."""
    numbers: Any = field(default_factory=lambda: itertools.count(100))

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_get("/adapters", self.listed)
        app.router.add_put("/adapters/{name}", self.load)
        app.router.add_delete("/adapters/{name}", self.unload)
        return app

    def restart(self) -> None:
        self.adapters.clear()

    async def chat(self, request: web.Request) -> web.Response:
        if self.broken:
            return web.json_response({"error": "engine dead"}, status=500)
        body = json.loads(await request.read())
        self.requests.append(body)
        if body["model"] not in self.adapters:
            message = f"The model `{body['model']}` does not exist."
            return web.json_response({"error": {"message": message, "code": 404}}, status=404)
        await asyncio.sleep(self.delay * (10 * self.jitter.random() if self.jitter else 1))
        words = " ".join(str(m["content"]) for m in body["messages"])
        prompt_ids = [ord(c) for c in words]
        seeded = self.seeded and "seed" in body
        number = random.Random(body["seed"]).randrange(100, 1000) if seeded else next(self.numbers)
        text = f"<{number}>"
        return web.json_response(chat_answer(body["model"], prompt_ids, [ord(c) for c in text], text))

    async def tokenize(self, request: web.Request) -> web.Response:
        """A template that writes `tool name;`, `role:content;`, and asks with `assistant:`; one token per character."""
        body = json.loads(await request.read())
        self.tokenizations.append(body)
        messages = body["messages"]
        text = "".join(f"tool {tool['function']['name']};" for tool in body.get("tools") or [])
        text += "".join(f"{message['role']}:{message['content']};" for message in messages)
        if body["add_generation_prompt"]:
            text += "assistant:"
        elif self.thoughtful:
            text = "thought;" + text
        tokens = [ord(c) for c in text]
        return web.json_response({"count": len(tokens), "max_model_len": 256, "tokens": tokens})

    async def listed(self, request: web.Request) -> web.Response:
        if self.broken:
            return web.json_response({"reason": "EngineDead", "message": "no answer"}, status=503)
        return web.json_response({"adapters": sorted(self.adapters)})

    async def load(self, request: web.Request) -> web.Response:
        if self.broken or self.refuses_loads:
            return web.json_response({"reason": "LoadFailed", "message": "cannot load"}, status=500)
        if self.ignores_adapters:
            return web.json_response({"reason": "AdapterIgnored", "message": "no effect"}, status=422)
        ref = LoadRequest.model_validate_json(await request.read())
        assert ref.name == request.match_info["name"]
        self.adapters.add(ref.name)
        self.loads.append(ref.name)
        return web.json_response({"adapters": sorted(self.adapters), "loadSeconds": 0.01})

    async def unload(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.adapters.discard(name)
        self.unloads.append(name)
        return web.json_response({"adapters": sorted(self.adapters)})
