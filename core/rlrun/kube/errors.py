"""The error of a request to the API server."""

import json
from collections.abc import Mapping
from typing import Any

MESSAGE_LIMIT = 2000
"""Characters of the API server's message that are kept."""
UNREACHABLE = "Unreachable"
TIMEOUT = "Timeout"
UNKNOWN = "Unknown"
FAILED = "Failed"
"""The request was not sent, for example because the server's certificate is not trusted."""
INVALID_ANSWER = "InvalidAnswer"


class ApiError(Exception):
    """A request that the API server rejected or did not answer.

    `status` is the HTTP status, or 0 without a usable answer. `reason` is the reason of Kubernetes' Status object
    (NotFound, Conflict, Invalid), the HTTP status where the answer is not a Status, or one of this module's words
    where there is none. `action` is the request as a phrase that follows "cannot": "get RLRun team/first".
    """

    def __init__(
        self, status: int, reason: str, message: str, *, action: str = "", details: Mapping[str, Any] | None = None
    ) -> None:
        code = f"{status} {reason}" if status else reason
        super().__init__(f"cannot {action}: {code}: {message}" if action else f"{code}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.action = action
        self.details = details or {}

    @classmethod
    def from_response(cls, status: int, body: str | bytes | None, action: str = "") -> "ApiError":
        """Return the error for an answer with an error status. The body is a Status object, or any text."""
        text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
        try:
            answer = json.loads(text)
            reason, message = str(answer.get("reason") or UNKNOWN), str(answer.get("message") or text)
            details = answer.get("details")
        except (ValueError, AttributeError):
            return cls(status, str(status), text[:500], action=action)
        return cls(
            status,
            reason,
            message[:MESSAGE_LIMIT],
            action=action,
            details=details if isinstance(details, dict) else None,
        )

    @property
    def is_unanswered(self) -> bool:
        """True if no answer arrived, so that the request may have taken effect or not."""
        return self.status == 0 and self.reason in (UNREACHABLE, TIMEOUT)

    @property
    def is_object_missing(self) -> bool:
        """True if the named object does not exist, and not only its kind or the path."""
        return self.status == 404 and bool(self.details.get("name"))
