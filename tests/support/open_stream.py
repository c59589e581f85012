"""A stream of the REST API that stays open: httpx waits for the end of a response of an application in this process."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.types import ASGIApp, Message

DEADLINE = 30.0


class ServerEvent(NamedTuple):
    """One event."""

    type: str
    data: Any
    id: str | None


class EventReader:
    """Cuts a stream of bytes into events."""

    def __init__(self) -> None:
        self._rest = ""
        self.comments: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Return the events that are complete now."""
        *blocks, self._rest = (self._rest + chunk.decode()).split("\n\n")
        found = []
        for block in blocks:
            fields: dict[str, str] = {}
            for line in block.splitlines():
                name, _, value = line.partition(": ")
                fields[name] = fields.get(name, "") + value
            if "event" in fields:
                found.append(ServerEvent(fields["event"], json.loads(fields["data"]), fields.get("id")))
            elif "" in fields:
                self.comments.append(fields[""])
        return found


class OpenStream:
    """One stream and what has arrived of it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.is_started = asyncio.Event()
        self.is_over = asyncio.Event()
        self.leaves = asyncio.Event()
        self.reader = EventReader()
        self._events: asyncio.Queue[ServerEvent] = asyncio.Queue()

    async def next(self) -> ServerEvent:
        """Return the next event."""
        async with asyncio.timeout(DEADLINE):
            return await self._events.get()

    async def next_of(self, kind: str) -> ServerEvent:
        """Return the next event of a type."""
        while True:
            found = await self.next()
            if found.type == kind:
                return found

    async def on_message(self, message: Message) -> None:
        """Receive a part of the response."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            self.is_started.set()
        else:
            self.body += message.get("body", b"")
            if self.headers.get("content-type", "").startswith("text/event-stream"):
                for event in self.reader.feed(message.get("body", b"")):
                    self._events.put_nowait(event)
            if not message.get("more_body"):
                self.is_over.set()

    async def requested(self) -> Message:
        """Be the client: it sends nothing, and leaves at last."""
        if not self.is_started.is_set():
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}


@asynccontextmanager
async def open_stream(
    app: ASGIApp, path: str, headers: Mapping[str, str], query: Mapping[str, Any] | str = ""
) -> AsyncIterator[OpenStream]:
    """Open a stream of an application, and leave it at the end of the context."""
    found = OpenStream()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": f"/rlrun/v1{path}",
        "raw_path": f"/rlrun/v1{path}".encode(),
        "query_string": (query if isinstance(query, str) else urlencode(query, doseq=True)).encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("server", 80),
    }
    task = asyncio.ensure_future(app(scope, found.requested, found.on_message))
    started = asyncio.ensure_future(found.is_started.wait())
    try:
        async with asyncio.timeout(DEADLINE):
            await asyncio.wait((task, started), return_when=asyncio.FIRST_COMPLETED)
        yield found
    finally:
        started.cancel()
        found.leaves.set()
        async with asyncio.timeout(DEADLINE):
            await task
