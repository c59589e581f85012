"""In-process OpenAI endpoint that replaces a run's gateway when an example is run."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rlrun.api.base.received import InputInvalid, read_fast
from rlrun.protocol.environment import MAX_REQUEST_BYTES

MAX_TURNS = 16
"""Maximum number of answered requests. Further requests are rejected, which ends conversations that would not end
otherwise.
"""
SOCKET_SECONDS = 10.0
SAMPLING: Mapping[str, Any] = {"temperature": 1.0, "max_tokens": 512}
"""Sampling arguments, with the same names as in a run's group requests."""
REFUSAL = {
    "error": {
        "message": "this model's maximum context length is reached (simulated, because the example sent many requests)",
        "type": "PromptTooLong",
        "code": "context_length_exceeded",
    }
}
"""Response to a rejected request. verifiers treats it as the end of the conversation."""


@dataclass
class ExampleEndpoint:
    """Endpoint that responds to every request with the same text."""

    answer: str | None
    """Text of the responses. If None, all requests are rejected."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    base_url: str = ""
    requests: int = 0

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve in threads, because rollouts may block the event loop while they wait for a response."""
        endpoint, loop = self, asyncio.get_running_loop()

        class RequestHandler(BaseHTTPRequestHandler):
            timeout = SOCKET_SECONDS

            def do_POST(self) -> None:
                """Respond to one request."""
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(endpoint.asked.set)
                body = self.rfile.read(min(int(self.headers.get("Content-Length") or 0), MAX_REQUEST_BYTES))
                status, kind, answer = endpoint.respond(self.path, body)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST

            def log_message(self, *_: object) -> None:
                """Log nothing, because requests are expected."""

        with _Server(("127.0.0.1", 0), RequestHandler) as server:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True, name="example").start()
            self.base_url = f"http://127.0.0.1:{server.server_port}/groups/example/v1"
            try:
                yield
            finally:
                server.shutdown()

    def respond(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        """Return the status, content type and body of a response."""
        self.requests += 1
        asked = _document(body)
        is_chat = path.endswith("/chat/completions")
        if self.answer is None or self.requests > MAX_TURNS or not (is_chat or path.endswith("/completions")):
            return 400, "application/json", json.dumps(REFUSAL).encode()
        if is_chat and asked.get("stream"):
            chunk = _completion(asked, "chat.completion.chunk", {"delta": _message(self.answer)})
            return 200, "text/event-stream", f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
        if is_chat:
            completion = _completion(asked, "chat.completion", {"message": _message(self.answer)})
        else:
            completion = _completion(asked, "text_completion", {"text": self.answer})
        return 200, "application/json", json.dumps(completion).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    """The default is 5. On a busy machine, the kernel resets some of the connections beyond it."""


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = read_fast(body)
    except InputInvalid:
        return {}
    return document if isinstance(document, dict) else {}


def _message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _completion(asked: dict[str, Any], kind: str, content: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "logprobs": None, **content}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {
        "id": "example",
        "object": kind,
        "created": 0,
        "model": str(asked.get("model", "")),
        "choices": [choice],
        "usage": usage,
    }
