"""A call to S3 in a thread: how long its caller waits, and which requests the thread may still send afterwards.

The caller waits while S3 answers: a listing of many pages may take its time, and says nothing against S3. A thread
cannot be cancelled, so the call is checked before each request, also before those that botocore repeats. After its
caller has gone it sends none. A request that changes something needs the Lease as well, because a late deletion would
otherwise take files from the operator that has taken over.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rlrun.storage.store import RequestLimits, Unreachable

from rlrun_operator.runtime.leader_election import LeaseLost

REQUEST_LIMITS = RequestLimits(connect_seconds=2.0, read_seconds=3.0, tries=2)
"""Limits of one request. A thread that hangs ends a few seconds after its caller has gone."""
READING_METHODS = frozenset({"GET", "HEAD"})


@dataclass(frozen=True)
class CallLimits:
    """Limits of one call."""

    silence_seconds: float = 4.0
    """Time without a response after which S3 counts as down."""
    total_seconds: float = 20.0
    """Time limit of a call that S3 answers. A deletion of many files is interrupted, and the next one continues it."""
    upload_bytes_per_second: float = 1024.0**2
    """Slowest upload that is waited for."""

    def silence_of_upload(self, size: int) -> float:
        """Return the time without a response for a request with a body of `size` bytes."""
        return self.silence_seconds + size / self.upload_bytes_per_second


DEFAULT_LIMITS = CallLimits()


class StoreTimeout(Unreachable):
    """A call was not finished within its time limit, although S3 may be well."""


class CallEnded(Exception):
    """The caller has gone, so the call sends no further request."""


class StoreCall:
    """One call. Its thread calls `begin`, `before_request`, `after_response` and `on_data`, its caller the others."""

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
        """True if S3 has answered a request."""
        self._is_reading = False
        """True while the body of an object arrives."""
        self._has_ended = False

    def begin(self) -> None:
        """Note that requests follow now. Before, the call waited for a thread or a client. Raises CallEnded."""
        self._check_caller()
        self._started = self._answered = self._clock()
        self._has_begun = True

    def before_request(self, method: str) -> None:
        """Raise CallEnded or LeaseLost if a request with this HTTP method must not be sent."""
        self._check_caller()
        self._is_reading = False
        if method not in READING_METHODS and not self._may_write():
            raise LeaseLost("The Lease may be lost, so no further file in S3 is written or deleted")

    def after_response(self) -> None:
        """Note that S3 answers."""
        self.is_answered = True
        self._is_reading = False
        self._answered = self._clock()

    def on_data(self) -> None:
        """Note that a piece of an object has arrived. Raises CallEnded if the rest must not be read."""
        self._check_caller()
        self._is_reading = True
        self._answered = self._clock()

    def end(self) -> None:
        """Let the call's thread send no further request."""
        self._has_ended = True

    @property
    def seconds_left(self) -> float:
        """Time that the caller waits from now on, unless S3 answers meanwhile."""
        return min(self._answered + self._silence_seconds, self._started + self._total_seconds) - self._clock()

    def timeout(self, endpoint: str) -> Unreachable:
        """Return the error of an abandoned call: StoreTimeout unless S3 does not answer."""
        silence, total = f"{self._silence_seconds:.0f} s", f"{self._total_seconds:.0f} s"
        if not self._has_begun:
            return StoreTimeout(f"no thread was free for the S3 endpoint {endpoint} within {silence}: raise s3Threads")
        is_silent = self._clock() - self._answered >= self._silence_seconds
        if is_silent and self._is_reading:
            return StoreTimeout(f"the S3 endpoint {endpoint} sent a part of an object and then nothing for {silence}")
        if is_silent:
            return Unreachable(f"the S3 endpoint {endpoint} has not answered for {silence}")
        return StoreTimeout(f"the S3 endpoint {endpoint} did not finish a call within {total}: it is retried")

    def _check_caller(self) -> None:
        if self._has_ended:
            raise CallEnded("the operator no longer waits for this call")


class CurrentCall(threading.local):
    """The call of each thread, which requests of a shared client are checked against."""

    call: StoreCall | None = None

    def before_request(self, method: str) -> None:
        """Check a request of this thread. Raises CallEnded, LeaseLost."""
        if self.call is not None:
            self.call.before_request(method)

    def after_response(self) -> None:
        """Note a response to this thread."""
        if self.call is not None:
            self.call.after_response()

    def on_data(self) -> None:
        """Note a piece of a body that this thread reads. Raises CallEnded."""
        if self.call is not None:
            self.call.on_data()
