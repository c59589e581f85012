"""Number of connections of each run, so that one run cannot use up the proxy."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from rlrun.constants import Reason

from rlrun_egress_proxy.connect_request import EgressRefused


class TunnelLimits:
    """Limits of all runs. Not thread-safe: use it from one event loop only."""

    def __init__(self, tunnels: int) -> None:
        self._tunnels = tunnels
        self._open: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """Number of open tunnels."""
        return self._open.total()

    @contextmanager
    def tunnel(self, uid: str) -> Iterator[None]:
        """Count a tunnel of the run inside this context. Raises EgressRefused if the run has too many."""
        if self._open[uid] >= self._tunnels:
            raise EgressRefused(
                HTTPStatus.TOO_MANY_REQUESTS,
                Reason.TOO_MANY_REQUESTS,
                f"The run has {self._tunnels} connections open, which is the limit. Close one, or reuse connections.",
            )
        self._open[uid] += 1
        try:
            yield
        finally:
            self._open[uid] -= 1
            if not self._open[uid]:
                del self._open[uid]
