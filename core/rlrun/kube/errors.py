"""Errors raised by requests to the API server."""

import re
from collections.abc import Mapping
from typing import Any

from rlrun.constants import GROUP

MESSAGE_LIMIT = 2000
"""Maximum number of characters of the API server's message that an error keeps."""
UNREACHABLE = "Unreachable"
TIMEOUT = "Timeout"
UNKNOWN = "Unknown"
FAILED = "Failed"
"""Reason for a request that was not sent, for example because the server's certificate is not trusted."""
INVALID_ANSWER = "InvalidAnswer"
TOO_LARGE = "TooLarge"
"""Reason for a response that is larger than the client's limit."""
VIOLATION_SEPARATOR = " | "
"""Separator of the violations (`field: description`) in the message of the project's admission policies."""
_DENIED = re.compile(
    rf"ValidatingAdmissionPolicy '[a-z]+\.{re.escape(GROUP)}' with binding '[^']+' denied request: (.*)", re.DOTALL
)
_FAILED = re.compile(r"expression '// ([^\n]+)\n.*' resulted in error: (.*)", re.DOTALL)
"""Pattern of a CEL error about an invalid value. The comment in the expression has field and message."""
_REMOVED_LOG = re.compile(
    rb"unable to retrieve container logs for [a-z-]+://[0-9a-f]+|failed to try resolving symlinks in path [^\n]+"
)
_VIOLATION = re.compile(r"((?:spec|metadata)[^\s:]*): (.*)", re.DOTALL)


class ApiError(Exception):
    """Raised if the API server rejects a request or does not respond.

    `status` is the HTTP status, or 0 if there was no usable response. `reason` is the reason in the response's JSON
    object (NotFound, Conflict, Invalid), or UNKNOWN if the object has none. If the response is not a JSON object,
    `reason` is the HTTP status; if there was no usable response, it is one of this module's constants. `action` is the
    request as a phrase that follows "cannot": "get RLRun team/first".
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
        """Return the error for a response with an error status.

        The body is a Status object, an error of rlrun-server (RFC 9457 or OpenAI's format), or any text.
        """
        # `rlrun --help` imports this module, and must not wait for pydantic.
        from rlrun.api.base.received import read_fast

        text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
        try:
            content = read_fast(text)
            said = content.get("message") or content.get("detail") or (content.get("error") or {}).get("message")
            reason, message = str(content.get("reason") or UNKNOWN), str(said or text)
            details = content.get("details")
        except (ValueError, AttributeError):
            return cls(status, str(status), text[:500], action=action)
        details = details if isinstance(details, dict) else {}
        if violations := _violations(message):
            details = {**details, "causes": violations}
        return cls(status, reason, message[:MESSAGE_LIMIT], action=action, details=details)

    @property
    def is_unanswered(self) -> bool:
        """True if no complete response arrived, so it is unknown whether the request took effect."""
        return self.status == 0 and self.reason in (UNREACHABLE, TIMEOUT)

    @property
    def is_temporary(self) -> bool:
        """True if a retry may succeed soon: no response, or an overloaded or failing API server."""
        return self.is_unanswered or self.status in (408, 429) or self.status >= 500

    @property
    def is_object_missing(self) -> bool:
        """True if the object does not exist. False if a 404 is about the kind or the URL path."""
        return self.status == 404 and bool(self.details.get("name"))


def find_log_error(text: bytes, action: str = "") -> ApiError | None:
    """Return the error that a kubelet sent instead of a log, or None if the text is a log.

    For the log of a removed container, a kubelet responds with 200 and a sentence without a newline
    (kubernetes/kubernetes issue 142258).
    """
    if len(text) > MESSAGE_LIMIT or not _REMOVED_LOG.fullmatch(text):
        return None
    return ApiError(404, "NotFound", text.decode(errors="replace"), action=action)


def _violations(message: str) -> list[dict[str, str]]:
    """Return the violations in a message of one of the project's admission policies, in the form of the causes of a
    schema error. Empty for other messages.
    """
    denied = _DENIED.search(message)
    if denied is None:
        return []
    failed = _FAILED.fullmatch(denied[1])
    texts = [f"{failed[1]}: {failed[2]}"] if failed else denied[1].split(VIOLATION_SEPARATOR)
    found = [_VIOLATION.fullmatch(text) for text in texts]
    return [{"reason": "FieldValueInvalid", "field": one[1], "message": one[2]} for one in found if one]
