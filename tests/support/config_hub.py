"""A hub that has the configuration of one model, for commands that read it."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

QWEN3_8B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}


@contextmanager
def config_hub(
    files: Mapping[str, bytes | str], token: str | None = None, asked: list[str | None] | None = None
) -> Iterator[str]:
    """Yield the URL of a hub with files by path.

    Args:
        files: Content by path, or the URL or path to which the hub redirects.
        token: Token without which nothing is answered.
        asked: List to which the Authorization of each request is added.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Authorization")
            if asked is not None:
                asked.append(given)
            allowed = token is None or given == f"Bearer {token}"
            body = files.get(self.path)
            status = 404 if body is None else 307 if isinstance(body, str) else 200
            self.send_response(status if allowed else 401)
            if allowed and isinstance(body, str):
                self.send_header("Location", body)
            self.end_headers()
            if allowed and isinstance(body, bytes):
                self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(30)
        server.server_close()


def config_file(repository: str, commit: str, config: dict[str, Any]) -> dict[str, bytes]:
    """Return the file of a model's configuration, by its path in the hub."""
    return {f"/{repository}/resolve/{commit}/config.json": json.dumps(config).encode()}
