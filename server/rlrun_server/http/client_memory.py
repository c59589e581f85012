"""Accounting and limits of the memory that large request and response bodies occupy while they wait for the network."""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlrun_server.http.connection_limits import OpenConnection
from rlrun_server.http.request import client_of

log = logging.getLogger(__name__)

MEMORY = "rlrun.memory"
"""Key of the memory limits in the ASGI scope of a request."""
CONNECTION = "rlrun.connection"
"""Key of the connection in the state of a request."""
FREE_BYTES = 16 * 1024
"""Number of bytes of each request body that are not counted. Most requests are smaller."""
SMALL_ANSWER = 64 * 1024
"""Size in bytes above which a response is counted until the client has received it."""


class ByteBudget:
    """Memory budget: at most `share` bytes for one client, and `total` for all."""

    def __init__(self, total: int, share: int) -> None:
        self._total = total
        self._share = share
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """Bytes reserved by all clients."""
        return self._held.total()

    def is_share_used(self, owner: str, count: int) -> bool:
        """Return whether `count` more bytes would exceed the client's share."""
        return self._held.get(owner, 0) + count > self._share

    def take(self, owner: str, count: int) -> bool:
        """Reserve bytes for a client. Returns False if the budget does not suffice."""
        if self._held[owner] + count > self._share or self.held + count > self._total:
            self.free(owner, 0)
            return False
        self._held[owner] += count
        return True

    def free(self, owner: str, count: int) -> None:
        """Release `count` bytes of a client."""
        self._held[owner] -= count
        if self._held[owner] <= 0:
            del self._held[owner]


@dataclass(frozen=True)
class ClientMemory:
    """Memory limits of a server, whose pod has 512 MiB by default."""

    bodies: ByteBudget = field(default_factory=lambda: ByteBudget(48 * 1024**2, 8 * 1024**2))
    """Budget for request bodies while they are being received."""
    answers: ByteBudget = field(default_factory=lambda: ByteBudget(96 * 1024**2, 40 * 1024**2))
    """Budget for responses until clients have received them."""


class WithMemory:
    """Application that limits the memory held for its clients."""

    def __init__(self, app: ASGIApp, memory: ClientMemory | None = None) -> None:
        self._app = app
        self._memory = memory or ClientMemory()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request."""
        await self._app({**scope, MEMORY: self._memory}, receive, send)


def memory_of(scope: Scope) -> ClientMemory | None:
    """Return the memory limits that apply to a request, or None if there are none."""
    memory: ClientMemory | None = scope.get(MEMORY)
    return memory


def owner_of(request: Request) -> str:
    """Return the client to which a request's memory is attributed: the user if identified, else the address."""
    return str(getattr(request.state, "limited_as", "")) or client_of(request)


class CountedBody:
    """Memory that a request body occupies while it is received."""

    def __init__(self, request: Request) -> None:
        memory = memory_of(request.scope)
        self._budget = None if memory is None else memory.bodies
        self._owner = owner_of(request)
        self._count = 0

    def grow(self, size: int) -> bool:
        """Record that `size` bytes of the body have been received so far. Returns False if the budget does not
        suffice.
        """
        more = size - FREE_BYTES - self._count
        if self._budget is None or more <= 0:
            return True
        if not self._budget.take(self._owner, more):
            return False
        self._count += more
        return True

    def release(self) -> None:
        """Release the body's bytes."""
        if self._budget is not None and self._count:
            self._budget.free(self._owner, self._count)
            self._count = 0


class CountedAnswer:
    """Sends a response, or a refusal if the memory budget does not suffice.

    Before refusing, closes connections whose clients receive large responses slowly, slowest first, until the budget
    suffices. If the client of this response has used its share, only connections of this client are considered.
    """

    def __init__(self, request: Request, send: Send, refuse: Callable[[Request], Response]) -> None:
        """`refuse` returns the response to send if the budget does not suffice."""
        memory = memory_of(request.scope)
        self._budget = None if memory is None else memory.answers
        self._connection: OpenConnection | None = request.scope.get("state", {}).get(CONNECTION)
        self._request = request
        self._send = send
        self._refuse = refuse
        self.owner = ""
        """Client to which the memory is attributed."""
        self._count = 0
        self._is_over = False

    async def send(self, message: Message) -> None:
        """Send a message of the application. After a refusal, the application's messages are dropped."""
        if self._is_over:
            return
        if message["type"] == "http.response.start" and not self._has_room(message):
            self._is_over = True
            log.warning("a response to %s was not sent, because too many large responses are unread", self.owner)
            await self._refuse(self._request)(self._request.scope, self._request.receive, self._send)
            return
        await self._send(message)

    def release(self) -> None:
        """Release the response's bytes."""
        if self._budget is not None and self._count:
            self._budget.free(self.owner, self._count)
            self._count = 0
        if self._connection is not None and self._connection.answer is self:
            self._connection.answer = None

    def _has_room(self, message: Message) -> bool:
        length = next((value for name, value in message.get("headers", ()) if name.lower() == b"content-length"), b"0")
        size = int(length)
        if self._budget is None or size <= SMALL_ANSWER:
            return True
        self.owner = owner_of(self._request)
        while not self._budget.take(self.owner, size):
            of = self.owner if self._budget.is_share_used(self.owner, size) else None
            if self._connection is None or not self._connection.limits.close_slowest(of):
                return False
        self._count = size
        if self._connection is not None:
            self._connection.answer = self
        return True
