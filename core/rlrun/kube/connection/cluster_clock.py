"""Clock of the API server, which decisions compare times of objects with."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

log = logging.getLogger(__name__)

REPORTED_SECONDS = 10.0
"""Difference from the time so far that is logged."""


class ClusterClock:
    """The API server's time, measured by the Date headers of its responses. Calling it returns the time.

    A response says in which second its header was written, between request and response: the clock moves only as far
    as that requires. Until the first response it shows the process's own time, and between two it follows the
    process's monotonic clock, so that no change of this machine's time moves it.
    """

    def __init__(
        self,
        own: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.monotonic = monotonic
        self._offset = own().timestamp() - monotonic()

    def __call__(self) -> datetime:
        """Return the API server's time in UTC."""
        return datetime.fromtimestamp(self.monotonic() + self._offset, UTC)

    def on_response(self, date: str | None, sent: float) -> None:
        """Measure the clock by a response that has just arrived.

        `date`: its Date header; one that cannot be read measures nothing. `sent`: reading of `monotonic` before the
        request.
        """
        try:
            second = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, OverflowError):
            return
        offset = min(max(self._offset, second - self.monotonic()), second + 1 - sent)
        if abs(offset - self._offset) >= REPORTED_SECONDS:
            log.warning(
                "The API server's clock differs by %+.0f s from the time so far. Decisions follow it; synchronize the "
                "clocks of the cluster's machines.",
                offset - self._offset,
            )
        self._offset = offset
