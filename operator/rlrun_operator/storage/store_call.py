"""Call to S3 in a thread: how long the caller waits, and which requests the thread may send.

The caller waits as long as S3 keeps responding, up to a total limit, because a listing of many pages may take long. A
thread cannot be cancelled, so the call is checked before each request, including botocore's retries. Once the caller no
longer waits, no further request is sent. Writes also need the Lease, because a late deletion could remove files of the
operator that has taken over.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rlrun.storage.store import RequestLimits, Unreachable

from rlrun_operator.runtime.leader_election import LeaseLost

REQUEST_LIMITS = RequestLimits(connect_seconds=2.0, read_seconds=3.0, tries=2)
"""Limits of one request. A hanging thread ends a few seconds after its caller has stopped waiting."""
READING_METHODS = frozenset({"GET", "HEAD"})


@dataclass(frozen=True)
class CallLimits:
    """Limits of one call."""

    silence_seconds: float = 4.0
    """Seconds without a response after which S3 is considered down."""
    total_seconds: float = 20.0
    """Time limit in seconds of a call to which S3 responds. A deletion of many files is interrupted and continued by
    the next call.
    """
    upload_bytes_per_second: float = 1024.0**2
    """Minimum rate of an upload. The caller does not wait for a slower upload."""

    def silence_of_upload(self, size: int) -> float:
        """Return the allowed seconds without a response for a request with a body of `size` bytes."""
        return self.silence_seconds + size / self.upload_bytes_per_second


DEFAULT_LIMITS = CallLimits()


class StoreTimeout(Unreachable):
    """Raised if a call exceeds its time limit although S3 may be available."""


class CallTooLong(StoreTimeout):
    """Raised if S3 responds, but not to all requests of the call within its time limit."""


class CallEnded(Exception):
    """Raised in the thread when the caller no longer waits, so that no further request is sent."""


class StoreCall:
    """Call to S3. The thread of the call uses `begin`, `before_request`, `after_response` and `on_data`; the caller
    uses the other methods.
    """

    def __init__(
        self,
        may_write: Callable[[], bool],
        *,
        silence_seconds: float,
        total_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._may_write = may_write
        self._silence_seconds = silence_seconds
        self._total_seconds = total_seconds
        self._clock = clock
        self._started = self._answered = clock()
        self._has_begun = False
        self.is_answered = False
        """True if S3 has responded to a request."""
        self._is_reading = False
        """True while the body of an object is being received."""
        self._has_ended = False

    def begin(self) -> None:
        """Record that the wait for a thread and a client has ended, and that requests follow. Raises CallEnded."""
        self._check_caller()
        self._started = self._answered = self._clock()
        self._has_begun = True

    def before_request(self, method: str) -> None:
        """Raise CallEnded or LeaseLost if a request with this HTTP method must not be sent."""
        self._check_caller()
        self._is_reading = False
        if method not in READING_METHODS and not self._may_write():
            raise LeaseLost("The Lease may be lost, so the operator no longer writes or deletes files in S3")

    def after_response(self) -> None:
        """Record a response from S3."""
        self.is_answered = True
        self._is_reading = False
        self._answered = self._clock()

    def on_data(self) -> None:
        """Record that a part of an object has arrived. Raises CallEnded if the rest must not be read."""
        self._check_caller()
        self._is_reading = True
        self._answered = self._clock()

    def end(self) -> None:
        """Prevent the call's thread from sending further requests."""
        self._has_ended = True

    @property
    def seconds_left(self) -> float:
        """Seconds that the caller still waits if S3 does not respond."""
        return min(self._answered + self._silence_seconds, self._started + self._total_seconds) - self._clock()

    def timeout(self, endpoint: str) -> Unreachable:
        """Return the error to raise for an abandoned call: StoreTimeout if S3 may be available, or Unreachable if S3
        does not respond.
        """
        silence, total = f"{self._silence_seconds:.0f} s", f"{self._total_seconds:.0f} s"
        if not self._has_begun:
            return StoreTimeout(
                f"no thread was free for the S3 endpoint {endpoint} within {silence}; increase operator.s3Threads"
            )
        is_silent = self._clock() - self._answered >= self._silence_seconds
        if is_silent and self._is_reading:
            return StoreTimeout(
                f"the S3 endpoint {endpoint} stopped sending in the middle of an object and was silent for {silence}"
            )
        if is_silent:
            return Unreachable(f"the S3 endpoint {endpoint} has not responded for {silence}")
        return CallTooLong(f"a call to the S3 endpoint {endpoint} did not finish within {total}; the call is retried")

    def _check_caller(self) -> None:
        if self._has_ended:
            raise CallEnded("the operator no longer waits for this call")


class CurrentCall(threading.local):
    """Current call of each thread, against which requests of a shared client are checked."""

    call: StoreCall | None = None

    def before_request(self, method: str) -> None:
        """Check a request of this thread. Raises CallEnded or LeaseLost."""
        if self.call is not None:
            self.call.before_request(method)

    def after_response(self) -> None:
        """Record a response to this thread."""
        if self.call is not None:
            self.call.after_response()

    def on_data(self) -> None:
        """Record that this thread has received a part of a body. Raises CallEnded."""
        if self.call is not None:
            self.call.on_data()
