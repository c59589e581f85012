"""Tokenizes chat messages with the engine's own template, so that training uses the tokens that the engine would
process.

Stock vLLM tokenizes chats at POST /tokenize, so this process needs neither the tokenizer nor its template.
"""

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
from rlrun.api.base.received import ENGINE_LIMITS, read_fast
from rlrun.constants import ExitCode, Reason
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import MODEL_HEADER
from rlrun.service.access import UNAUTHORIZED
from rlrun.service.backoff import Backoff
from rlrun.service.client import request
from rlrun.service.errors import FatalError, RequestRejected, ServiceUnavailable

from rlrun_orchestrator.inference.replica_pool import (
    BUSY_SECONDS,
    LONGEST_BUSY_SECONDS,
    TOO_MANY_REQUESTS,
    ReplicaPool,
    unauthorized_message,
)

TIMEOUT_SECONDS = 30.0

Messages = Sequence[dict[str, Any]]


class ChatTokenizer:
    """Renders and tokenizes conversations with the chat template of an engine."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        pool: ReplicaPool,
        model: str,
        template: Mapping[str, object],
        *,
        deadline: float,
    ) -> None:
        """`model` is the id of the base model. `template` has the chat template variables that the run's rollouts use.
        `deadline` is in seconds.
        """
        self._http = http
        self._model = model
        self._pool = pool
        self._template = dict(template)
        self._deadline = deadline

    async def encode(
        self,
        messages: Messages,
        *,
        tools: Messages = (),
        template: Mapping[str, object] | None = None,
        add_generation_prompt: bool,
    ) -> list[int]:
        """Return the token ids of a conversation, optionally with the generation prompt for the next answer. The
        chat template renders `tools` into the prompt. `template` replaces the run's chat template variables.

        Raises FatalError if no engine responds in time, or if an engine rejects the messages or returns no token ids.
        """
        question: dict[str, Any] = {
            "model": self._model,
            "messages": list(messages),
            "add_generation_prompt": add_generation_prompt,
        }
        if tools:
            question["tools"] = list(tools)
        if variables := self._template if template is None else dict(template):
            question["chat_template_kwargs"] = variables
        body = json.dumps(question).encode()
        headers = {MODEL_HEADER: self._model}
        deadline, busy = time.monotonic() + self._deadline, Backoff(BUSY_SECONDS, LONGEST_BUSY_SECONDS)
        problem = self._pool.problem()
        while time.monotonic() < deadline:
            able = [replica for replica in self._pool.replicas.values() if replica.is_answering]
            if not able:
                problem = self._pool.problem()
                await self._pool.wait_for_change(0.5)
                continue
            replica = min(able, key=lambda replica: replica.requests)
            try:
                url = f"{replica.endpoint.engine_url}/tokenize"
                answer = await request(
                    self._http,
                    "POST",
                    url,
                    body=body,
                    timeout=TIMEOUT_SECONDS,
                    max_bytes=ENGINE_LIMITS.size,
                    headers=headers,
                )
                tokens: list[int] = read_fast(answer, "the engine's response", ENGINE_LIMITS)["tokens"]
                return tokens
            except ServiceUnavailable as error:
                problem = error.problem
                if error.status == TOO_MANY_REQUESTS:  # the replica works
                    busy.record_failure(time.monotonic())
                    await asyncio.sleep(busy.pause * random.uniform(1, 1.5))
                else:
                    replica.mark_suspect(problem)
            except (RequestRejected, KeyError, ValueError) as error:
                if isinstance(error, RequestRejected) and error.status == UNAUTHORIZED:
                    problem = Problem(
                        reason=Reason.INFERENCE_FAILED, message=unauthorized_message(replica.endpoint.engine_url)
                    )
                    replica.mark_suspect(problem)
                    continue
                message = f"the engine cannot render a demonstration with its chat template: {error}"[:1000]
                problem = Problem(reason=Reason.CHAT_TEMPLATE_FAILED, message=message)
                raise FatalError(problem, ExitCode.CONFIGURATION) from error
        raise FatalError(problem, ExitCode.RESTART)
