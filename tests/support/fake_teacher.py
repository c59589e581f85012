"""Teacher of on-policy distillation."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class FakeTeacher:
    """The part of vLLM's completions that a teacher needs: log probabilities of a prompt."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    failures: int = 0
    """Requests that get no answer before the first that does."""
    refusal: str | None = None
    refuses: Callable[[list[int]], bool] | None = None
    """Whether it refuses a prompt, as one that fills its context."""
    optimistic: bool = False
    """Its log probabilities are above 0."""
    confused: Callable[[list[int]], bool] | None = None
    """Return True for a prompt whose last token gets the log probability NaN."""
    foreign: bool = False
    """Its tokenizer is another one."""
    redirect: str | None = None
    """URL that all requests are sent to."""
    text_for_number: str | None = None
    """Text in place of every log probability."""

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/completions", self.complete)
        return app

    async def complete(self, request: web.Request) -> web.Response:
        if self.failures > 0:
            self.failures -= 1
            return web.Response(status=503)
        if self.redirect is not None:
            return web.Response(status=307, headers={"Location": self.redirect})
        if self.refusal is not None:
            return web.json_response({"error": {"message": self.refusal, "code": 400}}, status=400)
        body = json.loads(await request.read())
        self.requests.append(body)
        if self.refuses is not None and self.refuses(body["prompt"]):
            return web.json_response({"error": {"message": "maximum context length", "code": 400}}, status=400)
        found: list[dict[str, Any] | None] = [None]
        for token in body["prompt"][1:]:
            name = str(token + 1 if self.foreign else token)
            number = self.text_for_number or (0.5 if self.optimistic else self.logprob(token))
            found.append({name: {"logprob": number, "rank": 1, "decoded_token": "?"}})
        if self.confused is not None and self.confused(body["prompt"]):
            (last,) = found[-1].values()  # type: ignore[union-attr]
            last["logprob"] = math.nan
        choice = {"index": 0, "text": "x", "finish_reason": "length", "prompt_logprobs": found}
        return web.json_response({"id": "cmpl-1", "object": "text_completion", "choices": [choice]})

    @staticmethod
    def logprob(token: int) -> float:
        """It finds `<` impossible and is sure of everything else."""
        return -9999.0 if token == ord("<") else -0.001 * token
