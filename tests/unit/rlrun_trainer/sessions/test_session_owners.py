"""Which orchestrator a session follows, when two of them reach the trainer."""

from collections.abc import Callable

import pytest
from rlrun.service.errors import ProblemError
from rlrun_trainer.sessions.session_owners import SessionOwners


def is_refused(request: Callable[[str, str], None], orchestrator: str, session: str = "run") -> bool:
    try:
        request(session, orchestrator)
    except ProblemError as error:
        return (error.status, error.problem.reason) == (410, "OrchestratorSuperseded")
    return False


@pytest.fixture
def owners() -> SessionOwners:
    return SessionOwners()


def test_a_session_follows_the_process_that_opened_it_last(owners: SessionOwners) -> None:
    assert not is_refused(owners.take, "first")
    assert not is_refused(owners.check, "first")
    assert not is_refused(owners.take, "second")
    assert is_refused(owners.check, "first")
    assert not is_refused(owners.check, "second")


def test_a_replaced_process_does_not_become_the_owner_again(owners: SessionOwners) -> None:
    for orchestrator in ("first", "second", "second"):
        assert not is_refused(owners.take, orchestrator)
    assert is_refused(owners.take, "first")
    assert not is_refused(owners.check, "second")


def test_sessions_have_owners_of_their_own(owners: SessionOwners) -> None:
    assert not is_refused(owners.take, "first", "a")
    assert not is_refused(owners.take, "second", "b")
    assert not is_refused(owners.check, "first", "a")


def test_a_restarted_trainer_knows_no_owner_until_the_session_is_open(owners: SessionOwners) -> None:
    assert not is_refused(owners.check, "first")


def test_a_process_that_another_run_has_replaced_is_not_refused(owners: SessionOwners) -> None:
    for orchestrator in ("first", "second"):
        assert not is_refused(owners.take, orchestrator, "a")
    assert not is_refused(owners.take, "first", "b")
    assert is_refused(owners.take, "first", "a")


def test_owners_of_runs_that_left_are_forgotten(owners: SessionOwners) -> None:
    for session in ("a", "b"):
        for orchestrator in ("first", "second"):
            owners.take(session, orchestrator)
    owners.keep_only(["b"])
    assert not is_refused(owners.take, "first", "a")
    assert is_refused(owners.take, "first", "b")
    assert is_refused(owners.check, "first", "b")
    owners.keep_only([])
    assert not owners._owners
    assert not owners._superseded
