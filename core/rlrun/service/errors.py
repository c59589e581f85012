"""Errors of HTTP servers and clients, and the error that terminates a process."""

from typing import Self

from rlrun.constants import ExitCode
from rlrun.protocol.problem import Problem


class ProblemError(Exception):
    """Raised by a server to reject a request, with the HTTP status and the problem to respond with."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(f"{problem.reason}: {problem.message}")
        self.status = status
        self.problem = problem

    @classmethod
    def of(cls, status: int, reason: str, message: str) -> "ProblemError":
        """Return the error with a problem made of `reason` and `message`."""
        return cls(status, Problem(reason=reason, message=message))


class RequestError(Exception):
    """Raised by a client whose request failed.

    `problem` is from the server's response, if it contained one. `status` is None if there was no usable response.
    """

    def __init__(self, problem: Problem, status: int | None = None) -> None:
        super().__init__(f"{problem.reason}: {problem.message}")
        self.problem = problem
        self.status = status

    def to_keep(self) -> Self:
        """Return the error without its traceback, whose frames reference the server's response."""
        return type(self)(self.problem, self.status)


class ServiceUnavailable(RequestError):
    """Raised if the service is temporarily unavailable. A later retry may succeed."""


class RequestRejected(RequestError):
    """Raised if the server rejected the request, or its response is unusable. A retry does not help."""


class FatalError(Exception):
    """Raised to end the process. `exit_code` indicates whether another attempt may succeed."""

    def __init__(self, problem: Problem, exit_code: int = ExitCode.RESTART) -> None:
        super().__init__(f"{problem.reason}: {problem.message}")
        self.problem = problem
        self.exit_code = exit_code
