"""Response with server-sent events."""

import asyncio
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from rlrun_server.rest.streams.client_stream import ClientStream

HEADERS = {"X-Accel-Buffering": "no"}


class EventStream(Response):
    """Sends a stream until it ends or its client leaves."""

    media_type = "text/event-stream"

    def __init__(
        self, stream: ClientStream | None = None, on_end: Callable[[], None] = lambda: None, status_code: int = 200
    ) -> None:
        """Without a stream it only describes the route. `on_end` is called in any case."""
        # FastAPI reads the status of a route from the signature.
        super().__init__(status_code=status_code, headers=HEADERS)
        del self.headers["content-length"]
        self._stream = stream
        self._on_end = on_end

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._stream is not None
        sending = asyncio.ensure_future(self._send_all(self._stream, send))
        leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            sending.cancel()
            leaving.cancel()
            self._stream.close()
            self._on_end()

    async def _send_all(self, stream: ClientStream, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while (chunk := await stream.next_chunk()) is not None:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
