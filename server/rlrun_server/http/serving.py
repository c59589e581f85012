"""Runs an ASGI application with uvicorn, and TLS from a context that can be replaced."""

import asyncio
import contextlib
import logging
import socket
import ssl
from asyncio import sslproto
from collections.abc import AsyncIterator, Iterator, Sequence

import uvicorn
from rlrun.service.listening import listen
from rlrun.service.server import DRAIN_SECONDS
from starlette.types import ASGIApp
from typing_extensions import override

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

log = logging.getLogger(__name__)

# Each connection has such a buffer from its first byte on. The default is 256 KiB.
sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES


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
                protocol.transport.abort()

        admitted = self._limits.admit(host, close, str(accepted.getsockname()[0]))
        if admitted is None:
            accepted.close()
            return
        try:
            protocol = LimitedConnection(
                config=self.config,
                server_state=self.server_state,
                app_state={},
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
        tls = self.config.ssl
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else HANDSHAKE_SECONDS,
            )

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
        app,
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
