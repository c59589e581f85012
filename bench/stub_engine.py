"""Stub engine that responds immediately, and a client without pauses, both cheap enough not to be the bottleneck.

They implement only the necessary part of HTTP: messages with a Content-Length on persistent connections.
"""

import asyncio
import json
import time
from abc import ABC, abstractmethod
from typing import Any

from tests.support.fake_replica import chat_answer


class _Messages(asyncio.Protocol, ABC):
    """HTTP parser that calls `message` with the head and the body of each message."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end]
            at = head.lower().find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._data) < end + 4 + length:
                return
            body, self._data = self._data[end + 4 : end + 4 + length], self._data[end + 4 + length :]
            self.message(head, body)

    @abstractmethod
    def message(self, head: bytes, body: bytes) -> None: ...


class _Upstream(_Messages):
    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self._answer = answer

    def message(self, head: bytes, body: bytes) -> None:
        self.transport.write(self._answer)


class Client(_Messages):
    """Client with one connection and one request at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: asyncio.Future[tuple[int, bytes]] | None = None

    @classmethod
    async def connect(cls, host: str, port: int) -> "Client":
        """Open a connection and return its client."""
        _, client = await asyncio.get_running_loop().create_connection(cls, host, port)
        return client

    async def post(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and return status and body. Raises ConnectionError if the server closes the connection."""
        if self.transport.is_closing():
            raise ConnectionResetError("the server closed the connection")
        self._waiting = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._waiting

    def message(self, head: bytes, body: bytes) -> None:
        """Complete the waiting request with the response."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result((int(head[9:12]), body))

    def connection_lost(self, error: Exception | None) -> None:
        """Make the waiting request raise an error."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error or ConnectionResetError("the server closed the connection"))


async def upstream(tokens: int) -> tuple[asyncio.Server, str]:
    """Start a server that returns the same response as vLLM to every request. Returns the server and its URL."""
    ids = [1000 + 37 * n % 9000 for n in range(tokens)]
    answer = chat_answer("canned", list(range(32)), ids, " ".join(f"word{n}" for n in ids))
    body = json.dumps(answer, separators=(",", ":")).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    server = await asyncio.get_running_loop().create_server(lambda: _Upstream(head + body), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    return server, f"http://{host}:{port}"


def request(host: str, path: str, body: dict[str, Any], **headers: str) -> bytes:
    """Return a POST request with a JSON body, as bytes."""
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", f"Content-Length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


async def throughput(host: str, port: int, requests: list[bytes], connections: int) -> tuple[float, list[float]]:
    """Send all requests. Returns total seconds and latencies. Raises RuntimeError for a status other than 200."""
    clients = [await Client.connect(host, port) for _ in range(connections)]
    queue, latencies = iter(requests), []

    async def work(client: Client) -> None:
        for one in queue:
            began = time.perf_counter()
            status, body = await client.post(one)
            latencies.append(time.perf_counter() - began)
            if status != 200:
                raise RuntimeError(f"{status}: {body[:300]!r}")

    began = time.perf_counter()
    try:
        await asyncio.gather(*(work(client) for client in clients))
        return time.perf_counter() - began, latencies
    finally:
        for client in clients:
            client.transport.close()
