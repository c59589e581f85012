"""A small endpoint with OpenAI's API of chats."""

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Endpoint(ThreadingHTTPServer):
    """Says the replies in turn, and keeps what it was asked."""

    def __init__(self) -> None:
        self.replies: Iterator[str] = itertools.cycle(["yes", "no"])
        self.asked: list[tuple[str, dict[str, Any]]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    def reply(self, body: dict[str, Any]) -> str:
        """Return the answer to a request."""
        return next(self.replies)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.headers["Authorization"], body))
        message = {"role": "assistant", "content": self.server.reply(body)}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        reply = {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(endpoint: Endpoint | None = None) -> Iterator[Endpoint]:
    """Serve until the end of the context."""
    with endpoint or Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
