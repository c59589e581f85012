"""Futures of samples. Unlike futures of commands, they exist only in the process that accepted the request.

The id of a future contains the id of its process. An Ingress may route a poll to another process. The other process
responds with "try again" a few times, so that the client can reach the right process, and then with 410. The status is
also 410 if the samples were dropped or lost. After 410, the client sends its request for samples again.
"""

import asyncio
import logging
import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rlrun.protocol.client_command import CommandError, CommandPending, CommandState, ErrorCategory
from rlrun_server.http.client_memory import ByteBudget
from starlette.responses import JSONResponse, Response

from rlrun_tinker.callers import CredentialHolder
from rlrun_tinker.errors import TinkerError
from rlrun_tinker.futures import INLINE_BYTES, POLL_SECONDS, PROTOBUF

MAX_FUTURES = (8192, 2048)
"""Maximum number of futures in progress, for all clients and for one client. The SDK waits for up to 2000 at the same
time.
"""
MAX_SAMPLES = (32_768, 8192)
"""Maximum number of samples of the futures in progress, for all clients and for one client."""
PROMPT_BYTES = (64 * 1024**2, 40 * 1024**2)
"""Maximum total size in bytes of the prompts of the futures in progress, for all clients and for one client."""
RESULT_BYTES = (64 * 1024**2, 40 * 1024**2)
"""Maximum total size in bytes of stored results, for all clients and for one client. The oldest results are dropped
first.
"""
OBJECT_BYTES = 2048
"""Approximate memory of a finished future without its result, in bytes."""
ABANDONED_SECONDS = 120.0
"""Seconds without a poll after which a future is cancelled or dropped. The SDK polls continuously."""
SWEEP_SECONDS = 5.0
FOREIGN_SECONDS = 0.3
"""Seconds after which a poll for a future of another process is answered."""
FOREIGN_POLLS = 10
"""Number of consecutive polls for a future of another process after which the future is considered lost."""
FOREIGN_MEMORY_SECONDS = 5.0
"""If no poll for another process's future arrives for this many seconds, its poll count starts again: a longer gap
means that one of the client's polls reached the right process and waited there.
"""
MAX_FOREIGN = 8192
"""Maximum number of futures of other processes whose polls are counted."""
ACTIVE = CommandPending(state=CommandState.active)
INTERNAL = CommandError(message="Internal error of rlrun-tinker: see its log.", category=ErrorCategory.server)
_ID = re.compile(r"sample\.(?P<process>[0-9a-f]{12})\.(?P<number>[0-9]{1,15})")

Tell = Callable[[CommandPending], None]
log = logging.getLogger(__name__)


class SamplesFailed(Exception):
    """Raised if sampling fails. `error` is for the user."""

    def __init__(self, error: CommandError) -> None:
        super().__init__(error.message)
        self.error = error


class SamplesLost(Exception):
    """Raised if the client must send its request again."""


@dataclass(eq=False)
class SampleFuture:
    """Samples in progress, or their result."""

    owner: str
    """Digest of the client's credential."""
    prompt_bytes: int
    count: int
    polled: float
    """Time of the latest poll."""
    task: "asyncio.Task[None] | None" = None
    done: asyncio.Event = field(default_factory=asyncio.Event)
    state: CommandPending = field(default_factory=lambda: ACTIVE)
    result: bytes | CommandError | None = None
    """Encoded samples or an error. None while the future is in progress, or if its result was lost or dropped."""
    polls: int = 0
    """Number of polls in progress."""


class SampleFutures:
    """Futures of this process, by number."""

    def __init__(
        self,
        clock: Callable[[], float],
        poll_seconds: float = POLL_SECONDS,
        result_bytes: tuple[int, int] = RESULT_BYTES,
    ) -> None:
        self._process = secrets.token_hex(6)
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._futures: OrderedDict[int, SampleFuture] = OrderedDict()
        self._finished: OrderedDict[int, int] = OrderedDict()
        """Size in bytes of each finished future by number, oldest first."""
        self._counts, self._samples = Counter[str](), Counter[str]()
        self._prompts, self._results = ByteBudget(*PROMPT_BYTES), ByteBudget(*result_bytes)
        self._foreign: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._last = 0
        self._is_leaving = False
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def in_progress(self) -> int:
        """Number of futures in progress."""
        return sum(not future.done.is_set() for future in self._futures.values())

    def start(
        self, caller: CredentialHolder, prompt_bytes: int, count: int, work: Callable[[Tell], Awaitable[bytes]]
    ) -> str:
        """Start drawing `count` samples, and return the future's id. `work` returns the encoded samples, or raises
        SamplesFailed or SamplesLost. It receives a function to report what it waits for. Raises TinkerError if too many
        samples or prompts are in progress, or if the process is shutting down.
        """
        if self._is_leaving:
            raise TinkerError(503, "rlrun-tinker is shutting down. Retry the request.")
        owner = caller.digest
        for counts, (total, share), more in ((self._counts, MAX_FUTURES, 1), (self._samples, MAX_SAMPLES, count)):
            if counts[owner] + more > share or counts.total() + more > total:
                raise TinkerError(429, "Too many samples are in progress. Wait until some are complete.")
        if not self._prompts.take(owner, prompt_bytes):
            raise TinkerError(429, "Too many long prompts are in progress. Wait until some are complete.")
        self._counts[owner] += 1
        self._samples[owner] += count
        self._last += 1
        future = SampleFuture(owner, prompt_bytes, count, self._clock())
        self._futures[self._last] = future
        future.task = asyncio.create_task(self._make(self._last, future, work))
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._sweep_regularly())
        return f"sample.{self._process}.{self._last}"

    async def retrieve(self, caller: CredentialHolder, request_id: str, *, allow_metadata_only: bool) -> Response:
        """Return the response with the samples, the failure or the state of the future. Raises TinkerError."""
        future = await self._find(caller, request_id)
        if future is None:
            return _try_again(request_id, ACTIVE)
        future.polls += 1
        try:
            async with asyncio.timeout(self._poll_seconds):
                await future.done.wait()
        except TimeoutError:
            return _try_again(request_id, future.state)
        finally:
            future.polls -= 1
            future.polled = self._clock()
        match future.result:
            case None:
                raise _gone()
            case CommandError() as error:
                return JSONResponse({"error": error.message, "category": error.category.value})
            case data:
                if allow_metadata_only and len(data) > INLINE_BYTES:
                    return JSONResponse({"status": "complete_metadata", "response_payload_size": len(data)})
                return Response(data, media_type=PROTOBUF)

    def cancel(self, caller: CredentialHolder, request_id: str) -> None:
        """Cancel a future of the caller. A future of another process is not cancelled, but ends after ABANDONED_SECONDS
        without a poll. Raises TinkerError if the id is malformed.
        """
        number = self._number(request_id)
        future = self._futures.get(number)
        if future is not None and future.owner == caller.digest:
            self._drop(number, future)

    def sweep(self) -> None:
        """Cancel and drop the futures that no client polls."""
        before = self._clock() - ABANDONED_SECONDS
        for number, future in list(self._futures.items()):
            if not future.polls and future.polled <= before:
                self._drop(number, future)

    def leave(self) -> None:
        """Cancel the futures in progress, so that clients send their requests to another process."""
        self._is_leaving = True
        for number, future in list(self._futures.items()):
            if not future.done.is_set():
                self._drop(number, future)

    def close(self) -> None:
        """Cancel all futures."""
        for number, future in list(self._futures.items()):
            self._drop(number, future)
        if self._sweeping is not None:
            self._sweeping.cancel()

    async def _sweep_regularly(self) -> None:
        while self._futures:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep()

    async def _make(self, number: int, future: SampleFuture, work: Callable[[Tell], Awaitable[bytes]]) -> None:
        def tell(state: CommandPending) -> None:
            future.state = state

        try:
            future.result = await work(tell)
        except SamplesFailed as failed:
            future.result = failed.error
        except SamplesLost:
            pass
        except Exception:
            log.exception("samples failed")
            future.result = INTERNAL
        self._release(future)
        self._keep(number, future)
        future.done.set()

    def _keep(self, number: int, future: SampleFuture) -> None:
        """Count the memory of a finished future. To make space, drops the oldest finished futures of the client, or of
        all clients.
        """
        owner, size = future.owner, OBJECT_BYTES + (len(future.result) if isinstance(future.result, bytes) else 0)
        while not self._results.take(owner, size):
            is_own = self._results.is_share_used(owner, size)
            numbers = (other for other in self._finished if not is_own or self._futures[other].owner == owner)
            oldest = next(numbers, None)
            if oldest is None:
                self._drop(number, future)
                return
            self._drop(oldest, self._futures[oldest])
        self._finished[number] = size

    def _release(self, future: SampleFuture) -> None:
        """Stop counting a future's prompt and samples."""
        if not future.count:
            return
        self._prompts.free(future.owner, future.prompt_bytes)
        for counts, less in ((self._counts, 1), (self._samples, future.count)):
            counts[future.owner] -= less
            if counts[future.owner] <= 0:
                del counts[future.owner]
        future.count = 0

    def _drop(self, number: int, future: SampleFuture) -> None:
        del self._futures[number]
        if future.task is not None and future.task is not asyncio.current_task():
            future.task.cancel()
        self._release(future)
        future.result = None
        future.done.set()
        if number in self._finished:
            self._results.free(future.owner, self._finished.pop(number))

    async def _find(self, caller: CredentialHolder, request_id: str) -> SampleFuture | None:
        """Return the future, or None if it may belong to another process. Raises TinkerError."""
        future = self._futures.get(self._number(request_id))
        if future is not None:
            if future.owner != caller.digest:
                raise _gone()
            return future
        if request_id.split(".")[1] == self._process:
            raise _gone()
        now, (polls, last) = self._clock(), self._foreign.pop(request_id, (0, 0.0))
        polls = 1 if now > last + FOREIGN_MEMORY_SECONDS else polls + 1
        if polls > FOREIGN_POLLS:
            raise _gone()
        self._foreign[request_id] = polls, now
        if len(self._foreign) > MAX_FOREIGN:
            self._foreign.popitem(last=False)
        await asyncio.sleep(FOREIGN_SECONDS)
        return None

    def _number(self, request_id: str) -> int:
        """Return the number of a future, or 0 if it belongs to another process. Raises TinkerError."""
        match = _ID.fullmatch(request_id)
        if match is None:
            raise TinkerError(404, f"{request_id[:100]!r} is not the id of a request to this server")
        return int(match["number"]) if match["process"] == self._process else 0


def is_sample(request_id: str) -> bool:
    """Return whether the id belongs to a future of samples."""
    return _ID.fullmatch(request_id) is not None


def _gone() -> TinkerError:
    return TinkerError(
        410, "The samples are lost: rlrun-tinker restarted, engines failed, or nobody read them. Sample again."
    )


def _try_again(request_id: str, pending: CommandPending) -> Response:
    body = {"type": "try_again", "request_id": request_id, "queue_state": pending.state.value}
    if pending.reason:
        body["queue_state_reason"] = pending.reason
    return JSONResponse(body, 408)
