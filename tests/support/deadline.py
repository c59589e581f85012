"""A deadline for code in the main thread."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class DeadlineExceeded(BaseException):
    """The code was not done in time. No `except Exception` between here and the deadline keeps it."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise DeadlineExceeded in the main thread after `seconds`, by SIGALRM."""

    def exceeded(_signal: int, _frame: FrameType | None) -> None:
        raise DeadlineExceeded(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, exceeded)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
