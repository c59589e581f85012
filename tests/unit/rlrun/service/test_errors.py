from rlrun.constants import ExitCode
from rlrun.protocol.problem import Problem
from rlrun.service.errors import FatalError, ProblemError, RequestError, RequestRejected, ServiceUnavailable

PROBLEM = Problem(reason="NoFreeSlot", message="all 2 slots are taken")


def test_problem_error_has_status_problem_and_text() -> None:
    error = ProblemError(503, PROBLEM)
    assert (error.status, error.problem, str(error)) == (503, PROBLEM, "NoFreeSlot: all 2 slots are taken")


def test_problem_error_of_reason_and_message_has_the_problem() -> None:
    assert ProblemError.of(503, PROBLEM.reason, PROBLEM.message).problem == PROBLEM


def test_both_failures_of_a_request_are_request_errors() -> None:
    for error_class in (ServiceUnavailable, RequestRejected):
        error = error_class(PROBLEM, 503)
        assert isinstance(error, RequestError)
        assert (error.problem, error.status, str(error)) == (PROBLEM, 503, "NoFreeSlot: all 2 slots are taken")


def test_fatal_error_asks_for_a_restart_unless_said_otherwise() -> None:
    assert FatalError(PROBLEM).exit_code == ExitCode.RESTART
    assert FatalError(PROBLEM, 64).exit_code == 64
