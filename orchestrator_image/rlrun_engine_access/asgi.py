"""ASGI types, JSON responses, and responses that refuse a request."""

import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

UNAUTHORIZED = 401
TOO_MANY_REQUESTS = 429

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Rejection(Exception):
    """Raised to refuse a request before it reaches vLLM. `message` is for the client. If `closes` is True, the response
    closes the connection.
    """

    def __init__(self, status: int, message: str, *, closes: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.closes = closes

    async def respond(self, send: Send) -> None:
        """Send the refusal in the error format of the OpenAI API."""
        kind = "rate_limit_error" if self.status == TOO_MANY_REQUESTS else "invalid_request_error"
        error = {"message": str(self), "type": kind, "code": self.status}
        headers = []
        if self.status == UNAUTHORIZED:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.status == TOO_MANY_REQUESTS:
            headers.append((b"retry-after", b"1"))
        if self.closes:
            headers.append((b"connection", b"close"))
        await send_json(send, {"error": error}, self.status, headers)


class Disconnected(Exception):
    """Raised if the client leaves before its request reaches vLLM."""


async def send_json(
    send: Send, content: object, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Send a response with `content` as JSON."""
    body = json.dumps(content).encode()
    own = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body})


def header_values(scope: Message, name: bytes) -> list[bytes]:
    """Return the values of all headers with this lowercase name."""
    return [value for given, value in scope["headers"] if given == name]
