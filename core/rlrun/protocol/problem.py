"""Description of a failure, the error body of all servers of the project.

A server that cannot handle a request responds with a `Problem` and an HTTP error status. The problem's reason becomes
the reason of a condition, and its message is shown to the user. Each other module of this package has the routes and
messages of one server.
"""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from rlrun.api.base.received import InputLimits
from rlrun.api.base.schema import Schema

MAX_MESSAGE = 16_384
"""Maximum number of characters of a message. The status of a run shows 4096 of them."""


def _cut(message: Any) -> Any:
    return message if not isinstance(message, str) or len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…"


class Problem(Schema):
    """Cause of a failure, and what the user can do about it."""

    wire_limits = InputLimits(size=64 * 1024, values=16)

    reason: str = Field(min_length=1, max_length=256)
    """Machine-readable reason in CamelCase that does not change between versions, such as `EnvironmentLoadFailed`."""
    message: Annotated[str, BeforeValidator(_cut)] = Field(max_length=MAX_MESSAGE)
    """Explanation for users: what happened, and what to do. Truncated to MAX_MESSAGE characters."""
