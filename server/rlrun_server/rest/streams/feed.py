"""Feeds that a stream combines: each has the events of one topic."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from rlrun_server.rest.streams.stream_models import ByeReason

Wake = Callable[[], None]


class StreamEvent(NamedTuple):
    """One event."""

    type: str
    data: bytes
    """JSON."""
    position: str
    """Position of the feed after it, for the id."""


class StreamEnd(Exception):
    """The stream has to end."""

    def __init__(self, reason: ByeReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Feed(Protocol):
    """Events of one topic for one stream."""

    letter: str
    """Name of the position in the ids of events."""
    pause: float
    """Least time between two collections, in seconds."""
    period: float
    """Time after which it is collected although nothing woke it."""

    @property
    def position(self) -> str:
        """Position in the ids of events."""
        ...

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` when there is something to collect. Returns a function that ends the subscription."""
        ...

    async def collect(self) -> list[StreamEvent]:
        """Return new events, not all of them if they are many: it is called again until there are none.

        Raises StreamEnd, RestError, ProblemError.
        """
        ...
