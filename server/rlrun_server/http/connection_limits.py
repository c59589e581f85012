"""Limits on open connections, in total and per source."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from rlrun_server.http.source_address import source_of

MAX_CONNECTIONS = 1000
MAX_PER_ADDRESS = 250
"""Connections of one source. The proxy of the API server, or an Ingress, has those of all its users."""

MAX_STREAMS = 400
MAX_COMPLETIONS = 128


@dataclass(frozen=True)
class LongRequests:
    """Limits of requests that take minutes, of all users together.

    All of them may come from one Ingress. A tenth of the connections of its address stays for other requests.
    """

    streams: int
    completions: int

    @classmethod
    def of(cls, per_address: int) -> "LongRequests":
        """Return the limits of a server with this limit on the connections of one address."""
        return cls(
            streams=max(1, min(MAX_STREAMS, per_address * 2 // 5)),
            completions=max(1, min(MAX_COMPLETIONS, per_address // 2)),
        )


class Activity(IntEnum):
    """Activity of a connection. The one with the least is closed first to make room."""

    idle = 0
    receiving = 1
    """The body of a request arrives, at the pace of the client."""
    answering = 2


@dataclass(eq=False)
class OpenConnection:
    """One connection from its acceptance to its end."""

    source: str
    close: Callable[[], None]
    """Closes the connection at once."""
    activity: Activity = Activity.idle


class ConnectionLimits:
    """Open connections by source.

    At the limit of a source its oldest idle connection makes room for a new one, or the oldest that receives. At the
    total limit that is one of the source that has the most among those with such a one, unless it has fewer than the
    source of the new one. No connection with an answer in progress makes room.
    """

    def __init__(self, total: int = MAX_CONNECTIONS, per_address: int = MAX_PER_ADDRESS) -> None:
        self._total = total
        self._per_address = per_address
        self._open: dict[str, dict[OpenConnection, None]] = defaultdict(dict)
        """Connections of each source, oldest first."""
        self._count = 0
        self.refused = 0
        """Number of connections that were refused or closed to make room."""

    @property
    def count(self) -> int:
        """Number of open connections."""
        return self._count

    @property
    def busy(self) -> int:
        """Number of open connections with a request in progress."""
        return sum(bool(connection.activity) for of_source in self._open.values() for connection in of_source)

    @property
    def total(self) -> int:
        """Largest number of open connections."""
        return self._total

    def admit(self, host: str, close: Callable[[], None], own: str = "") -> OpenConnection | None:
        """Count a new connection, until `release`. Returns None if there is no room for it.

        `own`: address of this server on the connection.
        """
        source = source_of(host, own)
        if not self._make_room(source):
            self.refused += 1
            return None
        connection = OpenConnection(source, close)
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
        self.refused += 1
        self.release(closed)
        closed.close()
        return True

    def _least_active(self, source: str) -> OpenConnection | None:
        """Return the oldest of the least active connections, None if all have an answer in progress."""
        found = min(self._open[source], key=lambda one: one.activity)
        return None if found.activity is Activity.answering else found
