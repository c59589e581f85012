"""Saying no: an exception that is an HTTP status and a `Problem`.

The status tells the orchestrator what to do: 503 try again later, 404 and 409 the session is not where you think it is,
422 and 424 and 507 trying again as it is will not help.
"""

from rlrun.artifacts.store import Corrupt, NotFound, StoreError, Unreachable
from rlrun.schema.wire import Problem

SESSION_MISSING = 404
CONFLICT = 409
UNPROCESSABLE = 422
FAILED_DEPENDENCY = 424
LATER = 503
OUT_OF_MEMORY = 507


class Refused(Exception):
    """The trainer cannot do what it was asked; its state is as it was before."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.status = status
        self.problem = Problem(reason=reason, message=message)

    def __reduce__(self) -> tuple[type["Refused"], tuple[int, str, str]]:
        return Refused, (self.status, self.problem.reason, self.problem.message)


def refused_opening(error: StoreError) -> Refused:
    """An S3 failure while a session opens: only an unreachable server is worth waiting for."""
    status = FAILED_DEPENDENCY
    if isinstance(error, Unreachable):
        status = LATER
    elif isinstance(error, NotFound | Corrupt):
        status = UNPROCESSABLE
    return Refused(status, error.problem.reason, error.problem.message)


def refused_publishing(error: StoreError) -> Refused:
    """An S3 failure after a step: the step is kept and published when it is asked for again."""
    return Refused(LATER, error.problem.reason, f"the step is done but not published: {error.problem.message}")
