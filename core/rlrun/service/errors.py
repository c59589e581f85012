"""Errors of the HTTP processes: a request refused by its server, a request that failed for its client, a process that
ends.
"""

from rlrun.constants import ExitCode
from rlrun.protocol.problem import Problem


class ProblemError(Exception):
    """Raised by a server that does not serve a request: the HTTP status and the problem of its response."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(f"{problem.reason}: {problem.message}")
        self.status = status
        self.problem = problem

    @classmethod
    def of(cls, status: int, reason: str, message: str) -> "ProblemError":
        """Return the error with a problem made of `reason` and `message`."""
        return cls(status, Problem(reason=reason, message=message))

    # Processes of the trainer send it to each other, and pickle would call the class with the text alone.
    def __reduce__(self) -> tuple[type["ProblemError"], tuple[int, Problem]]:
        return type(self), (self.status, self.problem)


class RequestError(Exception):
    """Raised by a client whose request failed.

    `problem` is the server's own when its response had one. `status` is None when there was no usable response.
    """

    def __init__(self, problem: Problem, status: int | None = None) -> None:
        super().__init__(f"{problem.reason}: {problem.message}")
        self.problem = problem
        self.status = status


class ServiceUnavailable(RequestError):
    """No response, or one that says "not now": the same request may succeed later."""


class RequestRejected(RequestError):
    """The server understood the request and rejected it: sending it again does not help."""


class FatalError(Exception):
    """Ends the process. `exit_code` tells its Job or its pod whether another attempt makes sense."""

    def __init__(self, problem: Problem, exit_code: int = ExitCode.RESTART) -> None:
        super().__init__(f"{problem.reason}: {problem.message}")
        self.problem = problem
        self.exit_code = exit_code
