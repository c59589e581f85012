"""HTTP connections with limits that uvicorn lacks: on the size of headers and the time to receive them, the number of
pipelined requests, the number of unsent bytes, and the time in which a client must receive these bytes.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rlrun_server.http.connection_limits import Activity, OpenConnection, WaitingBytes

log = logging.getLogger(__name__)

MAX_HEADER_BYTES = 32 * 1024
"""Maximum size of the request line and headers in bytes. Users' tokens take a few kilobytes."""
HEADER_SECONDS = 30.0
"""Time limit in seconds for the headers, from the start of the connection or the first byte of a further request."""
TAKE_SECONDS = 60.0
"""Time limit in seconds for a client to receive unsent data, after which its connection is aborted."""
MAX_PIPELINED = 4
"""Maximum number of pipelined requests on a connection, which is closed after the last one."""
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\ncontent-length: 42\r\n"
    b"connection: close\r\n\r\nThe headers of the request are too large.\n"
)


class LimitedConnection(HttpToolsProtocol):
    """uvicorn connection with limits. It responds with 431 to headers that are too large, and is aborted if the client
    does not read a response.

    A pipelined request starts only after the client has received the previous response.
    """

    _header_bytes = 0
    _unreported_bytes = 0
    """Bytes since the parser last reported complete headers or a part of a body. The parser buffers an incomplete
    header."""
    _waits_for_headers = True
    _unanswered = 0
    """Number of received requests without a complete response. Negative if a response came before the end of the
    request's body.
    """
    _deadline: asyncio.TimerHandle | None = None
    _cut: asyncio.TimerHandle | None = None
    _is_full = False
    """True if further requests are dropped, because too many are pipelined."""
    _completes_when_taken = False
    """True if the last response is written, but not received by the client yet."""

    _answered: RequestResponseCycle | None = None
    """Request in progress. uvicorn itself only stores the last received request."""

    def __init__(self, *args: Any, admitted: OpenConnection, on_lost: Callable[[], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._admitted = admitted
        self._on_lost = on_lost

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_deadline()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        self._end_cut()
        self._on_lost()
        self._end_answer()
        super().connection_lost(exc)

    def cut(self) -> None:
        """Abort the connection. Closing it would wait for the client to receive all data."""
        self._end_answer()
        if self.transport is not None:
            self.transport.abort()

    def _end_answer(self) -> None:
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()

    @override
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    @override
    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._waits_for_headers:
            self._begin_deadline()
        self._unreported_bytes += len(data)
        super().data_received(data)
        if self._unreported_bytes > MAX_HEADER_BYTES:
            self._refuse()

    @override
    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            self._is_full = True
            self.cycle.keep_alive = False
        if self._is_full:
            return
        self._header_bytes = 0
        self._begin_deadline()
        super().on_message_begin()

    @override
    def on_url(self, url: bytes) -> None:
        if not self._is_full and self._counts(len(url)):
            super().on_url(url)

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_full and self._counts(len(name) + len(value)):
            super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        if self._is_full:
            return
        self._end_deadline()
        self._unreported_bytes = 0
        self._waits_for_headers = False
        self._note_activity()
        if self._header_bytes <= MAX_HEADER_BYTES:
            super().on_headers_complete()

    @override
    def on_body(self, body: bytes) -> None:
        self._unreported_bytes = 0
        if not self._is_full and self._header_bytes <= MAX_HEADER_BYTES:
            super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._unreported_bytes = 0
        if self._is_full:
            return
        self._waits_for_headers = True
        self._unanswered += 1
        if self._header_bytes <= MAX_HEADER_BYTES:
            super().on_message_complete()
        self._note_activity()
        if self._admitted.activity is Activity.idle:
            # The response came before the end of the body, and the body has cancelled uvicorn's own deadline.
            self._begin_deadline()

    @override
    def on_response_complete(self) -> None:
        if self.flow.write_paused and not self.transport.is_closing():
            self._completes_when_taken = True
            return
        self._unanswered -= 1
        self._admitted.waiting = WaitingBytes()
        self._note_activity()
        super().on_response_complete()

    def _note_activity(self) -> None:
        if self._unanswered > 0:
            activity = Activity.answering
        elif self._unanswered == 0 and not self._waits_for_headers:
            activity = Activity.receiving
        else:
            activity = Activity.idle
        self._admitted.activity = activity

    def begin_waiting(self, size: int) -> None:
        """Pause writing until the client has received the pending bytes."""
        # The TLS handshake has its own deadline.
        if self.transport is not None:
            super().pause_writing()
            self._admitted.begin_waiting(size)
            if self._cut is None:
                self._cut = self.loop.call_later(TAKE_SECONDS, self._cut_off)

    @override
    def pause_writing(self) -> None:
        self.begin_waiting(self.transport.get_write_buffer_size())

    @override
    def resume_writing(self) -> None:
        if self.transport is None:
            return
        self._end_cut()
        self._admitted.end_waiting()
        super().resume_writing()
        if self._completes_when_taken:
            self._completes_when_taken = False
            self.on_response_complete()

    def _cut_off(self) -> None:
        log.info("a connection was aborted, because its client did not read the response")
        self.cut()

    def _end_cut(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None

    def _counts(self, size: int) -> bool:
        self._header_bytes += size
        if self._header_bytes <= MAX_HEADER_BYTES:
            return True
        self._refuse()
        return False

    def _refuse(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()

    def _begin_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._expire)

    def _expire(self) -> None:
        self._deadline = None
        if self.flow.read_paused:
            # The client cannot send the rest before earlier requests have responses.
            self._begin_deadline()
        else:
            self.cut()

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
