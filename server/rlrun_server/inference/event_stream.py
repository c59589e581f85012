"""Splitter of an engine's server-sent events."""

import re
from typing import Any

from rlrun.api.base.received import InputInvalid, read_fast

from rlrun_server.inference.usage import TokenUsage, read_usage

MAX_EVENT = 1024 * 1024
MAX_PARSED = 64 * 1024
"""Maximum size in bytes of an event that is parsed for its usage. The event with the usage is small, because it has no
text.
"""
END = re.compile(rb"\r?\n\r?\n")
LONGEST_END = 4
DONE = b"data: [DONE]"


class EventTooLarge(Exception):
    """Raised for an event of more than MAX_EVENT bytes."""


class EventSplitter:
    """Splits a stream into events. Removes an event that has only the usage, unless the client requested it."""

    def __init__(self, *, wants_usage: bool) -> None:
        self._wants_usage = wants_usage
        self._rest = bytearray()
        self._searched = 0
        """Number of buffered bytes already searched for the end of an event."""
        self.count = 0
        """Number of events for the client, except `[DONE]`."""
        self.usage: TokenUsage | None = None
        self.is_done = False
        """True after the last event."""

    def feed(self, chunk: bytes) -> bytes:
        """Add a chunk of the stream, and return the events that it completes. Raises EventTooLarge."""
        self._rest += chunk
        passed, start = [], 0
        while not self.is_done and (end := END.search(self._rest, max(start, self._searched))) is not None:
            event = bytes(self._rest[start : end.start()])
            start = self._searched = end.end()
            if self._is_for_client(event):
                passed.append(event + b"\n\n")
                self.count += event != DONE
            self.is_done = self.is_done or event == DONE
        del self._rest[:start]
        self._searched = max(0, len(self._rest) - LONGEST_END)
        if self.is_done:
            self._rest.clear()
        if len(self._rest) > MAX_EVENT:
            raise EventTooLarge
        return b"".join(passed)

    def _is_for_client(self, event: bytes) -> bool:
        if b'"usage"' not in event or len(event) > MAX_PARSED:
            return True
        content = _data(event)
        usage = read_usage(content)
        if usage is None:
            return True
        self.usage = usage
        return self._wants_usage or bool(content.get("choices"))


def _data(event: bytes) -> Any:
    try:
        return read_fast(event.removeprefix(b"data:"))
    except InputInvalid:
        return None
