"""A small API server over HTTP: it answers by method and path, and remembers what it was asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    content_type: str
    body: Any
    authorization: str | None = None
    impersonated: tuple[str, ...] = ()
    """User, and groups."""


@dataclass
class Answer:
    """An answer to give: a JSON object, or text."""

    body: Any = None
    status: int = 200
    seconds: float = 0.0
    """Pause before the answer."""
    endless: bool = False
    """Send bytes until the client leaves."""

    def response(self) -> web.Response:
        if isinstance(self.body, bytes):
            return web.Response(body=self.body, status=self.status)
        return web.json_response(self.body, status=self.status)


def not_found(name: str) -> Answer:
    """The answer for an object that does not exist."""
    return Answer({"reason": "NotFound", "message": f"{name} not found", "details": {"name": name}}, 404)


@dataclass
class ApiServer:
    """Answers by "METHOD /path", one after the other; the last one stays. What is unknown is 404 in plain text."""

    answers: dict[str, list[Answer]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    host: str = ""

    def answer(self, route: str, *answers: Answer) -> None:
        self.answers[route] = list(answers)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        content_type = request.headers.get("Content-Type", "")
        sender = request.headers.get("Authorization")
        names = ("Impersonate-User", "Impersonate-Group")
        impersonated = tuple(value for name in names for value in request.headers.getall(name, ()))
        query = dict(request.query)
        self.asked.append(Asked(request.method, request.path, query, content_type, body, sender, impersonated))
        waiting = self.answers.get(f"{request.method} {request.path}")
        if not waiting:
            return web.Response(text="404 page not found", status=404)
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        await asyncio.sleep(answer.seconds)
        if not answer.endless:
            return answer.response()
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(100 * b" ")
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving() -> AsyncIterator[ApiServer]:
    """Start the server on a free port."""
    server = ApiServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
