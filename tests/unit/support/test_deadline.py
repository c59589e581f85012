"""A deadline ends code that does not return."""

import contextlib
import signal
import threading

import pytest

from tests.support.deadline import DeadlineExceeded, deadline


def test_a_wait_that_swallows_exceptions_ends_at_its_deadline() -> None:
    def wait_for_ever() -> None:
        while True:
            with contextlib.suppress(Exception):
                threading.Event().wait(60)

    with pytest.raises(DeadlineExceeded, match=r"not done after 0.05 s"), deadline(0.05):
        wait_for_ever()


def test_code_that_is_done_in_time_meets_no_alarm_later() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with deadline(60):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is before
