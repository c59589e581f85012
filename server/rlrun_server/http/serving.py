"""Serves an ASGI application. Accepts connections within limits, and serves them with uvicorn's protocol."""

import asyncio
import contextlib
import logging
import socket
import ssl
from asyncio import sslproto
from collections.abc import AsyncIterator, Collection, Sequence
from email.utils import formatdate
from typing import Any

import uvicorn
from rlrun.service.listening import listen
from rlrun.service.server import DRAIN_SECONDS
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override
from uvicorn.server import ServerState

from rlrun_server.http.client_memory import CONNECTION
from rlrun_server.http.connection import LimitedConnection
from rlrun_server.http.connection_limits import ConnectionLimits

KEEP_ALIVE_SECONDS = 75
"""Seconds for which an idle connection stays open."""
LOOPBACK = "127.0.0.1"
DATE_SECONDS = 1.0
"""Seconds between updates of the `Date` header."""
RETRY_SECONDS = 1.0
"""Pause in seconds after a failure to accept a connection."""
PAUSE_SECONDS = 0.01
HANDSHAKE_SECONDS = 5.0
"""Time limit for the TLS handshake in seconds."""
TLS_BUFFER_BYTES = 32 * 1024
"""Size of the read buffer of each TLS connection. A TLS record has at most 16 KiB."""

SEND_BUFFER_BYTES = 32 * 1024
"""Size of the kernel's send buffer. Linux doubles this value. By default, a buffer can grow to megabytes per
connection, which count toward the pod's memory.
"""
PIECE = 16 * 1024
"""Number of response bytes that are written at once, and therefore the maximum that this process buffers for a client.
"""

log = logging.getLogger(__name__)

# Each connection allocates this buffer at its first byte. The default is 256 KiB.
sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES


class _TlsConnection(sslproto.SSLProtocol):
    """TLS layer that pauses its connection as soon as there are unsent bytes. asyncio's own TLS layer would first
    buffer half a megabyte.
    """

    def __init__(self, connection: LimitedConnection, tls: ssl.SSLContext, ready: "asyncio.Future[None]") -> None:
        """`ready` is set at the end of the handshake."""
        # typeshed declares the timeout as an integer.
        deadline: Any = HANDSHAKE_SECONDS
        super().__init__(ready.get_loop(), connection, tls, ready, True, ssl_handshake_timeout=deadline)
        self._connection = connection
        self._below: asyncio.Transport | None = None
        self._waits = False

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._below = transport
        super().connection_made(transport)

    @override
    def pause_writing(self) -> None:
        self._waits = True
        super().pause_writing()
        self._connection.begin_waiting(0 if self._below is None else self._below.get_write_buffer_size())

    @override
    def resume_writing(self) -> None:
        self._waits = False
        # The protocol may write more, and pause again.
        super().resume_writing()
        if not self._waits:
            self._connection.resume_writing()


class InPieces:
    """Application that sends each response in pieces, each after the kernel has accepted the previous piece."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request."""

        async def send_pieces(message: Message) -> None:
            body: bytes = message.get("body", b"")
            if len(body) <= PIECE:
                await send(message)
                return
            for start in range(0, len(body), PIECE):
                has_more = start + PIECE < len(body) or message.get("more_body", False)
                await send({**message, "body": body[start : start + PIECE], "more_body": has_more})

        await self._app(scope, receive, send_pieces)


class _Connections:
    """Accepts and serves connections to an application, within limits.

    uvicorn's own server would let asyncio allocate TLS buffers before the server could refuse the connection.
    """

    def __init__(self, app: ASGIApp, tls: ssl.SSLContext | None, limits: ConnectionLimits) -> None:
        self._tls = tls
        self._limits = limits
        self._state = ServerState()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._config = uvicorn.Config(
            InPieces(app),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            # Limits apply to the connection's address, because clients could forge X-Forwarded-For.
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        self._config.load()

    async def renew_date(self) -> None:
        """Update the `Date` header until cancelled."""
        while True:
            self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            await asyncio.sleep(DATE_SECONDS)

    async def accept(self, listening: socket.socket) -> None:
        """Accept connections on a listening socket until cancelled."""
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                log.warning("could not accept a connection: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except Exception:
                # Nothing awaits this task: if it failed, the server would run without accepting connections.
                log.exception("could not accept a connection because of an unexpected error")
                await asyncio.sleep(RETRY_SECONDS)
                continue
            try:
                self._begin(accepted, str(address[0]))
            except Exception:
                log.exception("closed a connection because of an unexpected error")
                accepted.close()
            # Let other tasks run: sock_accept does not wait while connections arrive.
            await asyncio.sleep(0)

    def _begin(self, accepted: socket.socket, host: str) -> None:
        """Serve an accepted connection, or close it if there are too many."""

        def close() -> None:
            if protocol.transport is None:
                handshake.cancel()
            else:
                protocol.cut()

        admitted = self._limits.admit(host, close, str(accepted.getsockname()[0]))
        if admitted is None:
            accepted.close()
            return
        try:
            protocol = LimitedConnection(
                config=self._config,
                server_state=self._state,
                app_state={CONNECTION: admitted},
                admitted=admitted,
                on_lost=lambda: self._limits.release(admitted),
            )
        except Exception:
            self._limits.release(admitted)
            raise
        handshake = asyncio.create_task(self._connect(accepted, protocol))
        self._handshakes.add(handshake)

        def end(task: asyncio.Task[None]) -> None:
            self._handshakes.discard(task)
            if protocol.transport is None:
                accepted.close()
                self._limits.release(admitted)

        handshake.add_done_callback(end)

    async def _connect(self, accepted: socket.socket, protocol: LimitedConnection) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, TimeoutError):
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            ready = loop.create_future()
            lowest: asyncio.Protocol | asyncio.BufferedProtocol = protocol
            if self._tls is None:
                ready.set_result(None)
            else:
                lowest = _TlsConnection(protocol, self._tls, ready)
            transport, _ = await loop.connect_accepted_socket(lambda: lowest, accepted)
            # Data that the kernel does not accept immediately pauses the connection.
            transport.set_write_buffer_limits(high=0)
            try:
                await ready
            except BaseException:
                transport.abort()
                raise

    async def drain(self, seconds: float) -> None:
        """Close each connection when its requests in progress end. Cancels requests that take longer than `seconds`."""
        await _cancel(self._handshakes)
        for connection in list(self._state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(seconds):
                while self._state.connections or self._state.tasks:  # noqa: ASYNC110  # uvicorn has no event for them
                    await asyncio.sleep(PAUSE_SECONDS)
        except TimeoutError:
            log.warning("aborting %d requests in progress", len(self._state.tasks))
            for task in self._state.tasks:
                task.cancel()


async def _cancel(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp,
    port: int,
    tls_port: int | None = None,
    tls: ssl.SSLContext | None = None,
    *,
    drain_seconds: float = DRAIN_SECONDS,
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[None]:
    """Serve the application on all addresses of this host while the context is open.

    If `tls` is set, `port` is open to this host only, and `tls_port` to all hosts. When the context ends, requests in
    progress have `drain_seconds` to finish. `limits` apply to the connections to both ports in total. Raises OSError
    if a port is in use.
    """
    limits = limits or ConnectionLimits()
    async with contextlib.AsyncExitStack() as stack:
        if tls is not None and tls_port is not None:
            await stack.enter_async_context(serving_on(app, listen(None, tls_port), tls, drain_seconds, limits))
        plain = listen(LOOPBACK if tls is not None else None, port)
        await stack.enter_async_context(serving_on(app, plain, None, drain_seconds, limits))
        yield


@contextlib.asynccontextmanager
async def serving_on(
    app: ASGIApp,
    sockets: Sequence[socket.socket],
    tls: ssl.SSLContext | None = None,
    drain_seconds: float = DRAIN_SECONDS,
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[None]:
    """Serve the application on listening sockets while the context is open, and close the sockets when it ends."""
    connections = _Connections(app, tls, limits or ConnectionLimits())
    work = (connections.renew_date(), *(connections.accept(listening) for listening in sockets))
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        await _cancel(tasks)
        for listening in sockets:
            listening.close()
        await connections.drain(drain_seconds)
