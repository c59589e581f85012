"""Runs an ASGI application with uvicorn, and TLS from a context that can be replaced."""

import asyncio
import contextlib
import logging
import socket
import ssl
from asyncio import sslproto
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import uvicorn
from rlrun.service.listening import listen
from rlrun.service.server import DRAIN_SECONDS
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from rlrun_server.http.client_memory import CONNECTION
from rlrun_server.http.connection import LimitedConnection
from rlrun_server.http.connection_limits import ConnectionLimits

KEEP_ALIVE_SECONDS = 75
"""Time for which a connection without requests stays open."""
LOOPBACK = "127.0.0.1"
TICK_SECONDS = 1.0
PAUSE_SECONDS = 0.01
HANDSHAKE_SECONDS = 5.0
"""Time for the handshake of TLS."""
TLS_BUFFER_BYTES = 32 * 1024
"""Buffer of each connection with TLS, whose records have at most 16 KiB."""

SEND_BUFFER_BYTES = 32 * 1024
"""Bytes in the kernel that a client has not taken. Linux counts twice as many, and by itself lets a connection have
megabytes, which are the pod's memory as well."""
PIECE = 16 * 1024
"""Bytes of an answer that are written together, and so the most that wait in this process for one client."""

log = logging.getLogger(__name__)

# Each connection has such a buffer from its first byte on. The default is 256 KiB.
sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES


class _TlsConnection(sslproto.SSLProtocol):
    """TLS of a connection, below which no bytes wait unseen: asyncio alone would buffer half a megabyte."""

    def __init__(self, connection: LimitedConnection, tls: ssl.SSLContext, ready: "asyncio.Future[None]") -> None:
        """`ready` is set at the end of the handshake."""
        # typeshed has it as an integer.
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
        # It may write more, and pause again.
        super().resume_writing()
        if not self._waits:
            self._connection.resume_writing()


class InPieces:
    """Application whose answers are written by the piece, each when the client has taken the one before."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""

        async def send_pieces(message: Message) -> None:
            body: bytes = message.get("body", b"")
            if len(body) <= PIECE:
                await send(message)
                return
            for start in range(0, len(body), PIECE):
                has_more = start + PIECE < len(body) or message.get("more_body", False)
                await send({**message, "body": body[start : start + PIECE], "more_body": has_more})

        await self._app(scope, receive, send_pieces)


class _Server(uvicorn.Server):
    """Server that ends as soon as its last request does: uvicorn's own polls ten times per second."""

    def __init__(self, config: uvicorn.Config, drain_seconds: float, limits: ConnectionLimits) -> None:
        super().__init__(config)
        self._drain_seconds = drain_seconds
        self._limits = limits
        self._ending = asyncio.Event()
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()

    def end(self) -> None:
        """Accept no more connections, and end with the requests in progress."""
        self.should_exit = True
        self._ending.set()

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The process has its own handler of SIGTERM.
        yield

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # asyncio would make the buffers of TLS before anything could refuse the connection.
        for listening in sockets or []:
            listening.setblocking(False)
            self._accepting.append(asyncio.create_task(self._accept(listening)))
        self.started = True

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                log.warning("no connection was accepted: %s", error)
                await asyncio.sleep(TICK_SECONDS)
                continue
            except Exception:
                # Nothing waits for this task: without it the server would run, and accept nothing.
                log.exception("no connection was accepted")
                await asyncio.sleep(TICK_SECONDS)
                continue
            try:
                self._begin(accepted, str(address[0]))
            except Exception:
                log.exception("a connection was closed")
                accepted.close()
            # sock_accept does not wait while connections arrive.
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
                config=self.config,
                server_state=self.server_state,
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
        loop, tls = asyncio.get_running_loop(), self.config.ssl
        with contextlib.suppress(OSError, TimeoutError):
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            ready = loop.create_future()
            lowest: asyncio.Protocol | asyncio.BufferedProtocol = protocol
            if tls is None:
                ready.set_result(None)
            else:
                lowest = _TlsConnection(protocol, tls, ready)
            transport, _ = await loop.connect_accepted_socket(lambda: lowest, accepted)
            # What the kernel does not take at once makes the connection wait.
            transport.set_write_buffer_limits(high=0)
            try:
                await ready
            except BaseException:
                transport.abort()
                raise

    @override
    async def main_loop(self) -> None:
        # Each tick renews the header with the date.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._ending.wait()

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        state = self.server_state
        for task in (*self._accepting, *self._handshakes):
            task.cancel()
        await asyncio.gather(*self._accepting, *self._handshakes, return_exceptions=True)
        for listening in sockets or []:
            listening.close()
        for connection in list(state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self._drain_seconds):
                while state.connections or state.tasks:  # noqa: ASYNC110  # uvicorn has no event for them
                    await asyncio.sleep(PAUSE_SECONDS)
        except TimeoutError:
            log.warning("%d requests in progress are cut off", len(state.tasks))
            for task in state.tasks:
                task.cancel()


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

    With `tls` only `tls_port` is open to others, and `port` to this host alone. When the context ends, requests in
    progress have `drain_seconds`. `limits` count the connections of all ports; None: the defaults. Raises OSError if a
    port is in use.
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
    """Serve the application on sockets while the context is open, and close them."""
    config = uvicorn.Config(
        InPieces(app),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        # Limits are those of the connection's address, which a client could otherwise choose by X-Forwarded-For.
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        ssl_context_factory=None if tls is None else lambda *_: tls,
    )
    server = _Server(config, drain_seconds, limits or ConnectionLimits())
    task = asyncio.create_task(server.serve(sockets=list(sockets)))
    try:
        while not server.started:
            if task.done():
                await task
                raise OSError("uvicorn ended before it served")
            await asyncio.sleep(PAUSE_SECONDS)
        yield
    finally:
        server.end()
        await task
