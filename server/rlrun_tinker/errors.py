"""Rejections of requests, in the form that the SDK shows to its users.

The SDK repeats a request that is rejected with 408, 409, 429 or 5xx, for five minutes or more. All other rejections end
the user's program.
"""

from rlrun.service.errors import RequestError, ServiceUnavailable
from starlette.responses import JSONResponse, Response

RETRY_SECONDS = 10
"""Value of the header Retry-After in seconds, for all RETRYABLE statuses except 429."""
RETRYABLE = frozenset({408, 429, 503})
"""Statuses after which the same request may succeed."""
PASSED_STATUSES = frozenset({401, 403, 404, 429})
"""Statuses of rlrun-server that have the same meaning for the SDK, and are passed on."""


class TinkerError(Exception):
    """Rejection of a request. The SDK shows the message to its user."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    def response(self) -> Response:
        """Return the response for the error."""
        # After 429 the pauses of the SDK grow from half a second, as commands may complete at any time.
        headers = {"Retry-After": str(RETRY_SECONDS)} if self.status in RETRYABLE - {429} else {}
        return JSONResponse({"detail": self.message}, self.status, headers)


def from_server(error: RequestError) -> TinkerError:
    """Convert an error of a request to rlrun-server."""
    if error.status in PASSED_STATUSES:
        return TinkerError(error.status, error.problem.message)
    if isinstance(error, ServiceUnavailable) or error.status is None or error.status >= 500:
        message = f"rlrun-server cannot handle the request now: {error.problem.message}"
        return TinkerError(503, message)
    # Among them 409, which the SDK would repeat.
    return TinkerError(400, error.problem.message)
