"""Clock that follows the API server, for comparisons with the times in its objects."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

log = logging.getLogger(__name__)

REPORTED_SECONDS = 10.0
"""Minimum correction in seconds that is logged."""


class ClusterClock:
    """Clock that follows the API server's time, taken from the Date headers of responses. Calling it returns the time.

    A Date header has a resolution of one second and was written between request and response, so the clock is corrected
    only as far as needed to be consistent with the header. Until the first response it shows the process's own time.
    Between responses it follows the monotonic clock, so that changes of this machine's time have no effect.
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
        """Correct the clock with a response that has just arrived.

        `date` is the response's Date header, and is ignored if it is invalid. `sent` is the value of `monotonic` before
        the request.
        """
        try:
            second = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, OverflowError):
            return
        offset = min(max(self._offset, second - self.monotonic()), second + 1 - sent)
        if abs(offset - self._offset) >= REPORTED_SECONDS:
            log.warning(
                "The API server's clock differs by %+.0f s from the time used so far. Decisions now use the API "
                "server's clock; synchronize the clocks of the cluster's machines.",
                offset - self._offset,
            )
        self._offset = offset
