"""Engine of a serving pool as rlrun-server sees it: OpenAI's routes behind the middleware of the project."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rlrun.kube.references import pool_name
from rlrun.protocol.engine_proof import pool_server_key
from rlrun.service.listening import listen
from rlrun_engine_access.middleware import EngineAccess
from rlrun_server.http.serving import serving_on
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

PLATFORM_KEY = b"a key of at least sixteen bytes"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def event(content: Any) -> bytes:
    """Return a server-sent event."""
    return b"data: " + (content if isinstance(content, bytes) else json.dumps(content).encode()) + b"\n\n"


def piece(text: str) -> dict[str, Any]:
    """Return a piece of a streamed answer."""
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


@dataclass
class CompletionEngine:
    """Answers with `text`, word by word if the client streams."""

    namespace: str = "team"
    model: str = "m"
    text: str = "one two"
    status: int = 200
    refusal: Any = field(default_factory=dict)
    answer: Response | None = None
    """Answer in place of all others."""
    events: list[bytes] | None = None
    """Events in place of the words of the text."""
    gate: asyncio.Event | None = None
    """Answers, and all events after the first one, wait for it."""
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    """Path, headers and body of each request."""
    left: int = 0
    """Requests whose client left before their end."""
    url: str = ""

    async def _complete(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.requests.append((request.url.path, dict(request.headers), body))
        if self.answer is not None:
            return self.answer
        if self.status != 200:
            return JSONResponse(self.refusal, self.status)
        if body.get("stream"):
            return StreamingResponse(self._stream(body), media_type="text/event-stream")
        while self.gate is not None and not self.gate.is_set():
            if await request.is_disconnected():
                self.left += 1
                return Response(status_code=499)
            await asyncio.sleep(0.01)
        message = {"role": "assistant", "content": self.text}
        return JSONResponse({"model": body["model"], "choices": [{"index": 0, "message": message}], "usage": USAGE})

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        ended = False
        try:
            for number, sent in enumerate(self.events or self._words(body)):
                if number and self.gate is not None:
                    await self.gate.wait()
                yield sent
            ended = True
        finally:
            self.left += not ended

    def _words(self, body: dict[str, Any]) -> list[bytes]:
        found = [event(piece(word)) for word in self.text.split()]
        if (body.get("stream_options") or {}).get("include_usage"):
            found.append(event({"choices": [], "usage": USAGE}))
        return [*found, event(b"[DONE]")]

    @asynccontextmanager
    async def serving(self, monkeypatch: Any, platform_key: bytes = PLATFORM_KEY) -> AsyncIterator["CompletionEngine"]:
        """Serve on loopback while the context is open."""
        monkeypatch.setenv("RLRUN_TOKEN", "token-of-the-pool")
        key = pool_server_key(platform_key, self.namespace, pool_name(self.model))
        monkeypatch.setenv("RLRUN_POOL_SERVER_KEY", key)
        monkeypatch.setenv("RLRUN_USER_PATHS", "/v1/chat/completions,/v1/completions")
        paths = ("/v1/chat/completions", "/v1/completions")
        app = Starlette(routes=[Route(path, self._complete, methods=["POST"]) for path in paths])
        sockets = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/v1"
        async with serving_on(EngineAccess(app), sockets, drain_seconds=1.0):
            yield self
