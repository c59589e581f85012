"""Response that relays the events of an engine as they arrive."""

import asyncio
import contextlib
from contextlib import AsyncExitStack

import aiohttp
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from rlrun_server.http.disconnect import ClientLeft, until_left
from rlrun_server.inference.errors import InferenceError
from rlrun_server.inference.event_stream import EventSplitter, EventTooLarge
from rlrun_server.inference.pool_client import EngineAnswer
from rlrun_server.inference.usage import RequestRecord, TokenUsage

ERROR_SECONDS = 5.0
"""Time limit in seconds for the end of a stream, which is an error event if it failed. The client may have stopped
reading.
"""


class RelayedStream(StreamingResponse):
    """Stream that ends with an error event if the engine fails, and aborts the request if the client disconnects."""

    def __init__(
        self, answer: EngineAnswer, events: EventSplitter, record: RequestRecord, deadline: float, stack: AsyncExitStack
    ) -> None:
        """`deadline` is a time on the event loop's clock; `stack` releases the request's resources."""
        super().__init__((), headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream")
        self._answer = answer
        self._events = events
        self._record = record
        self._deadline = deadline
        self._stack = stack

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            try:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                error = await until_left(receive, self._relay_events(send), self._deadline)
            except ClientLeft:
                self._record.outcome = "left"
                return
            except TimeoutError:
                error = InferenceError(504, "timeout", "The stream took too long. Request fewer tokens (`max_tokens`).")
            finally:
                # A client that disconnects early has used tokens too, about one per event.
                self._record.usage = self._events.usage or TokenUsage(0, self._events.count)
            if error is None:
                self._record.outcome = "ok"
            # If the client has stopped reading, the connection is closed without a last event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ERROR_SECONDS):
                    await send({"type": "http.response.body", "body": b"" if error is None else error.event()})

    async def _relay_events(self, send: Send) -> InferenceError | None:
        """Send all events. Returns the error with which the stream ends, or None after the engine's last event."""
        try:
            async for chunk in self._answer.chunks():
                if passed := self._events.feed(chunk):
                    await send({"type": "http.response.body", "body": passed, "more_body": True})
                if self._events.is_done:
                    return None
            what = "ended the stream before its last event"
        except EventTooLarge:
            what = "sent an event that is too large"
        except (aiohttp.ClientError, OSError):
            what = "closed the connection"
        message = (
            f"The engine of {self._record.model.own_name} {what}. Retry the request; the engine pod's log shows the "
            f"cause."
        )
        return InferenceError(502, "engine_failed", message)
