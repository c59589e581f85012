"""Limits on open connections, in total and per source, and the choice of the connection to close.

When connections or memory run short, clients that do not read their responses lose their connections first.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from rlrun_server.http.request import source_of

MAX_CONNECTIONS = 1000
MAX_PER_ADDRESS = 250
"""Maximum number of connections per source. All users of the API server's proxy, or of an Ingress, share one source."""

SLOW_SECONDS = 1.0
"""Seconds for which a response must have waited for its client before the client is considered slow."""
SLOW_RATE = 64 * 1024
"""Rate in bytes per second below which a client with a waiting response is considered slow."""

MAX_COMPLETIONS = 128


def limit_completions(per_address: int) -> int:
    """Return the maximum number of concurrent completions of all users.

    Half of the connections of an address remain free for other requests, because a completion takes minutes and all
    users may come through one Ingress.
    """
    return max(1, min(MAX_COMPLETIONS, per_address // 2))


class Activity(IntEnum):
    """Activity of a connection. The least active connection is closed first."""

    idle = 0
    receiving = 1
    """A request body is being received, at the client's pace."""
    answering = 2


class HeldAnswer(Protocol):
    """Large response that stays in memory until its client has received it."""

    @property
    def owner(self) -> str:
        """Client to which the response is attributed."""
        ...

    def release(self) -> None:
        """Release the response's bytes."""
        ...


@dataclass
class WaitingBytes:
    """Unsent bytes of a connection, and the rate at which the client receives them."""

    size: int = 0
    since: float | None = None
    """Time since which bytes have been waiting without interruption, or None."""
    taken: int = 0
    """Number of bytes of this response that had to wait before the client received them."""
    seconds: float = 0.0
    """Total time for which the bytes in `taken` waited, in seconds."""

    def begin(self, size: int, now: float) -> None:
        """Record that `size` bytes are waiting for the client."""
        self.size, self.since = size, now

    def end(self, now: float) -> None:
        """Record that the client has received the waiting bytes."""
        if self.since is not None:
            self.taken += self.size
            self.seconds += now - self.since
            self.since = None

    def slow_rate(self, now: float) -> float | None:
        """Return the client's rate in bytes per second, or None if the client is not slow."""
        if self.since is None:
            return None
        seconds = self.seconds + now - self.since
        if seconds < SLOW_SECONDS or self.taken >= SLOW_RATE * seconds:
            return None
        return self.taken / seconds


@dataclass(eq=False)
class OpenConnection:
    """State of a connection that is counted in ConnectionLimits."""

    source: str
    close: Callable[[], None]
    """Function that aborts the connection."""
    limits: "ConnectionLimits"
    activity: Activity = Activity.idle
    waiting: WaitingBytes = field(default_factory=WaitingBytes)
    answer: HeldAnswer | None = None
    """Response in progress, or None if it does not count towards the memory budget."""

    def begin_waiting(self, size: int) -> None:
        """Record that `size` bytes are waiting for the client."""
        self.waiting.begin(size, self.limits.now())

    def end_waiting(self) -> None:
        """Record that the client has received the waiting bytes."""
        self.waiting.end(self.limits.now())


class ConnectionLimits:
    """Open connections by source.

    If a source has reached its limit, a new connection replaces the source's connection with the slowest client, or
    else its oldest idle connection, or else its oldest connection that is receiving a request. If the total limit is
    reached, the same rule applies to each source with at least as many connections as the new connection's source, in
    descending order of connections. A connection that is answering a request is closed only if its client is slow.
    """

    def __init__(
        self,
        total: int = MAX_CONNECTIONS,
        per_address: int = MAX_PER_ADDRESS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.now = now
        self._total = total
        self._per_address = per_address
        self._open: dict[str, dict[OpenConnection, None]] = defaultdict(dict)
        """Connections of each source, oldest first."""
        self._count = 0
        self.refused = 0
        """Number of connections that were refused or closed because of the limits."""

    @property
    def count(self) -> int:
        """Number of open connections."""
        return self._count

    @property
    def connections(self) -> list[OpenConnection]:
        """Open connections."""
        return [connection for of_source in self._open.values() for connection in of_source]

    @property
    def busy(self) -> int:
        """Number of open connections with a request in progress."""
        return sum(bool(connection.activity) for connection in self.connections)

    @property
    def total(self) -> int:
        """Maximum number of open connections."""
        return self._total

    def admit(self, host: str, close: Callable[[], None], own: str = "") -> OpenConnection | None:
        """Count a new connection until `release`. Returns None if it must be refused. `own` is the server's address on
        the connection.
        """
        source = source_of(host, own)
        if not self._make_room(source):
            self.refused += 1
            return None
        connection = OpenConnection(source, close, self)
        self._open[source][connection] = None
        self._count += 1
        return connection

    def release(self, connection: OpenConnection) -> None:
        """Stop counting the connection."""
        of_source = self._open.get(connection.source, {})
        if connection not in of_source:
            return
        del of_source[connection]
        self._count -= 1
        if not of_source:
            del self._open[connection.source]

    def _make_room(self, source: str) -> bool:
        own = len(self._open.get(source, ()))
        if own >= self._per_address:
            closed = self._least_active(source)
        elif self._count < self._total:
            return True
        else:
            sources = sorted(self._open, key=lambda other: len(self._open[other]), reverse=True)
            larger = (other for other in sources if len(self._open[other]) >= own)
            closed = next((one for other in larger if (one := self._least_active(other)) is not None), None)
        if closed is None:
            return False
        self._close(closed)
        return True

    def close_slowest(self, owner: str | None) -> bool:
        """Close the connection whose client receives a counted response most slowly. Returns False if no client is
        slow.

        If `owner` is not None, only responses for this client are considered.
        """
        now = self.now()
        slow = [
            (rate, connection)
            for connection in self.connections
            if connection.answer is not None
            and owner in (None, connection.answer.owner)
            and (rate := connection.waiting.slow_rate(now)) is not None
        ]
        if not slow:
            return False
        self._close(min(slow, key=lambda found: found[0])[1])
        return True

    def _close(self, connection: OpenConnection) -> None:
        self.refused += 1
        self.release(connection)
        if connection.answer is not None:
            connection.answer.release()
        connection.close()

    def _least_active(self, source: str) -> OpenConnection | None:
        """Return the source's connection with the slowest client, or else the oldest of its least active connections.
        Returns None if all of these connections are answering requests and none of their clients is slow.
        """
        now = self.now()

        def order(one: OpenConnection) -> tuple[float, int]:
            rate = one.waiting.slow_rate(now)
            return (math.inf if rate is None else rate, one.activity)

        found = min(self._open[source], key=order)
        is_taken = found.waiting.slow_rate(now) is None
        return None if is_taken and found.activity is Activity.answering else found
