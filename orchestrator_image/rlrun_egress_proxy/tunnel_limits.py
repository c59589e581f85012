"""Number of connections of each run and namespace, so that one tenant cannot use up the proxy."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from rlrun.constants import Reason
from rlrun.protocol.egress import EgressGrant

from rlrun_egress_proxy.connect_request import EgressRefused


class TunnelLimits:
    """Limits of all runs. Not thread-safe: use it from one event loop only."""

    def __init__(self, per_run: int, connections: int) -> None:
        """`connections`: limit of the whole proxy; a namespace gets half of it."""
        self._limits = {"run": per_run, "namespace": max(1, connections // 2)}
        self._open: Counter[tuple[str, str]] = Counter()

    @property
    def open(self) -> int:
        """Number of open tunnels."""
        return sum(count for (kind, _), count in self._open.items() if kind == "run")

    @contextmanager
    def tunnel(self, grant: EgressGrant) -> Iterator[None]:
        """Count a tunnel inside this context. Raises EgressRefused if the run or its namespace has too many."""
        keys = [("run", grant.uid), ("namespace", grant.namespace)]
        for key in keys:
            if self._open[key] >= self._limits[key[0]]:
                raise EgressRefused(
                    HTTPStatus.TOO_MANY_REQUESTS,
                    Reason.TOO_MANY_REQUESTS,
                    f"The {key[0]} has {self._open[key]} connections open, which is the limit. Close one, or reuse "
                    "connections.",
                )
        self._open.update(keys)
        try:
            yield
        finally:
            self._open.subtract(keys)
            self._open = +self._open
