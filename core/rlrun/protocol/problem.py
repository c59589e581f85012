"""Description of a failure, the error body of all servers of the project.

A server that cannot fulfil a request responds with a `Problem` and an HTTP error status. Its reason becomes the reason
of a condition, its message is shown to the user. Each other module of this package has the routes and messages of one
server.
"""

from pydantic import Field

from rlrun.api.base.schema import Schema


class Problem(Schema):
    """Cause of a failure, and what the user can do about it."""

    reason: str = Field(min_length=1, max_length=256)
    """Stable reason for programs, one CamelCase word: `EnvironmentLoadFailed`, `S3AccessDenied`."""
    message: str
    """Explanation for users: what happened, and what to do."""
