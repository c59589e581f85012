"""HTTP connections with a limit on headers, and on the time for them: uvicorn has neither."""

import asyncio

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 32 * 1024
"""Bytes of the first line and the headers of a request. Tokens of users have a few kilobytes."""
HEADER_SECONDS = 30.0
"""Time from the connection to the end of the first headers."""
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\ncontent-length: 42\r\n"
    b"connection: close\r\n\r\nThe headers of the request are too large.\n"
)


class LimitedConnection(HttpToolsProtocol):
    """Connection of uvicorn that ends with 431 if the headers of a request are too large."""

    _header_bytes = 0
    _deadline: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(HEADER_SECONDS, transport.abort)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        super().connection_lost(exc)

    @override
    def on_message_begin(self) -> None:
        self._header_bytes = 0
        super().on_message_begin()

    @override
    def on_url(self, url: bytes) -> None:
        if self._counts(len(url)):
            super().on_url(url)

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        if self._counts(len(name) + len(value)):
            super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        self._end_deadline()
        if self._header_bytes <= MAX_HEADER_BYTES:
            super().on_headers_complete()

    @override
    def on_body(self, body: bytes) -> None:
        if self._header_bytes <= MAX_HEADER_BYTES:
            super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        if self._header_bytes <= MAX_HEADER_BYTES:
            super().on_message_complete()

    def _counts(self, size: int) -> bool:
        was_small = self._header_bytes <= MAX_HEADER_BYTES
        self._header_bytes += size
        if self._header_bytes <= MAX_HEADER_BYTES:
            return True
        if was_small and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()
        return False

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
