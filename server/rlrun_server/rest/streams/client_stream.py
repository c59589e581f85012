"""One open stream: collects the events of its feeds, and ends with its time or its caller's permission."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from rlrun.service.errors import ProblemError

from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.streams.feed import Feed, StreamEnd, StreamEvent
from rlrun_server.rest.streams.stream_cursor import encode_cursor
from rlrun_server.rest.streams.stream_models import Bye, ByeReason, EventType

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 15.0
CHECK_SECONDS = 30.0
"""Time between two checks of credential and permissions."""
MAX_UNCHECKED_SECONDS = 120.0
"""Time for which a stream continues while the API server does not answer about the permission."""
MAX_SECONDS = 3600.0
SLOW_SECONDS = 20.0
"""Time in which a client must read what it was sent."""
RETRY_SECONDS = 15.0
"""Time until a feed that failed is collected again."""
RECONNECT_MILLISECONDS = 3000
OPENING = format_sse_event(data_str=None, comment="open", retry=RECONNECT_MILLISECONDS)
REFUSED = frozenset({401, 403, 404})

Wait = Callable[[asyncio.Event, float], Awaitable[None]]


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Return when the event is set, or when the time is over."""
    try:
        async with asyncio.timeout(None if math.isinf(seconds) else max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        pass


class _Collecting:
    """A feed, and when it is collected."""

    def __init__(self, feed: Feed, wake: asyncio.Event, clock: Callable[[], float]) -> None:
        self.feed = feed
        self.due = -math.inf
        self.task: asyncio.Task[list[StreamEvent]] | None = None
        self._wake = wake
        self._clock = clock
        self._last = -math.inf
        self._is_stale = False
        self._unsubscribe = feed.subscribe(self.on_change)

    def on_change(self) -> None:
        """Collect soon."""
        self._is_stale = True
        self.due = min(self.due, max(self._clock(), self._last + self.feed.pause))
        self._wake.set()

    def begin(self, now: float) -> None:
        """Collect if it is time."""
        if self.task is None and now >= self.due:
            self._last, self._is_stale = now, False
            self.due = math.inf
            self.task = asyncio.create_task(self.feed.collect())
            self.task.add_done_callback(lambda _: self._wake.set())

    def take(self) -> list[StreamEvent]:
        """Return the collected events and the time of the next collection. Propagates exceptions of the feed."""
        task, self.task = self.task, None
        if task is None or not task.done():
            self.task = task
            return []
        now = self._clock()
        try:
            events = task.result()
        except (RestError, ProblemError) as error:
            self.due = now + RETRY_SECONDS
            if isinstance(error, RestError) and error.status in REFUSED:
                raise StreamEnd(ByeReason.unauthorized, error.detail) from error
            log.info("a stream waits: %s", error)
            return []
        is_early = bool(events) or self._is_stale
        self.due = now + (self.feed.pause if is_early else self.feed.period)
        return events

    def close(self) -> None:
        self._unsubscribe()
        if self.task is not None:
            self.task.cancel()


class ClientStream:
    """Stream of one client. `next_chunk` is called by one task."""

    def __init__(
        self,
        feeds: Sequence[Feed],
        confirm: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
        wait: Wait = wait_for_event,
    ) -> None:
        """`confirm` raises StreamEnd if the credential or permission has ended, and another exception if that is
        unknown."""
        self._clock = clock
        self._wait = wait
        self._confirm = confirm
        self._wake = asyncio.Event()
        self._collecting = [_Collecting(feed, self._wake, clock) for feed in feeds]
        self._events: deque[tuple[str, StreamEvent]] = deque()
        self._positions = {feed.letter: feed.position for feed in feeds}
        self._began = self._confirmed = self._sent = clock()
        self._next_check = self._began + CHECK_SECONDS
        self._checking: asyncio.Task[StreamEnd | Exception | None] | None = None
        self._is_opened = False
        self._bye: StreamEnd | None = None
        self._is_over = False

    def end(self, reason: ByeReason, detail: str) -> None:
        """Let the stream end with `bye`. Events that wait are left out."""
        if self._bye is None:
            self._bye = StreamEnd(reason, detail)
            self._wake.set()

    async def next_chunk(self) -> bytes | None:
        """Return what is sent next, None at the end. The client determines the time between two calls."""
        if not self._is_opened:
            self._is_opened = True
            return self._send(OPENING)
        if self._clock() - self._sent > SLOW_SECONDS and not self._is_over:
            self.end(ByeReason.slow, f"The client did not take an event for {SLOW_SECONDS:.0f} s.")
        self._sent = self._clock()
        while not self._is_over:
            self._check_time()
            self._collect()
            if self._bye is not None:
                self._is_over = True
                bye = Bye(reason=self._bye.reason, detail=self._bye.detail)
                return self._send(format_sse_event(event=EventType.bye, data_str=bye.model_dump_json()))
            if self._events:
                letter, event = self._events.popleft()
                self._positions[letter] = event.position
                text, cursor = event.data.decode(), encode_cursor(self._positions)
                return self._send(format_sse_event(event=event.type, data_str=text, id=cursor))
            now = self._clock()
            if now >= self._sent + HEARTBEAT_SECONDS:
                return self._send(KEEPALIVE_COMMENT)
            times = [c.due for c in self._collecting if c.task is None]
            until = min([self._sent + HEARTBEAT_SECONDS, self._began + MAX_SECONDS, self._next_check, *times])
            await self._wait(self._wake, until - now)
            self._wake.clear()
        return None

    def close(self) -> None:
        """End the feeds."""
        for collecting in self._collecting:
            collecting.close()
        if self._checking is not None:
            self._checking.cancel()

    def _send(self, chunk: bytes) -> bytes:
        self._sent = self._clock()
        return chunk

    def _collect(self) -> None:
        now = self._clock()
        for collecting in self._collecting:
            # What was collected is sent before more is.
            if self._events:
                return
            try:
                events = collecting.take()
            except StreamEnd as error:
                self.end(error.reason, error.detail)
                return
            except Exception:
                log.exception("a stream ends")
                self.end(ByeReason.reconnect, "This is an error of the server: see its log.")
                return
            self._events += [(collecting.feed.letter, event) for event in events]
            if not events:
                collecting.begin(now)

    def _check_time(self) -> None:
        now = self._clock()
        if now >= self._began + MAX_SECONDS:
            self.end(ByeReason.reconnect, "The stream is an hour old. Open it again with the id of the last event.")
        if self._checking is not None and self._checking.done():
            self._on_checked(self._checking, now)
            self._checking = None
        elif self._checking is None and now >= self._next_check:
            self._next_check = now + CHECK_SECONDS
            self._checking = asyncio.create_task(_run_check(self._confirm))
            self._checking.add_done_callback(lambda _: self._wake.set())

    def _on_checked(self, check: "asyncio.Task[StreamEnd | Exception | None]", now: float) -> None:
        result = check.result()
        if result is None:
            self._confirmed = now
        elif isinstance(result, StreamEnd):
            self.end(result.reason, result.detail)
        elif now > self._confirmed + MAX_UNCHECKED_SECONDS:
            detail = "The API server does not say whether you still have the right. Open the stream again later."
            self.end(ByeReason.unavailable, detail)


async def _run_check(confirm: Callable[[], Awaitable[None]]) -> StreamEnd | Exception | None:
    """Return how the check ended."""
    try:
        await confirm()
    except (StreamEnd, RestError, ProblemError) as error:
        return error
    except Exception as error:
        log.exception("the right of a stream cannot be checked")
        return error
    return None
