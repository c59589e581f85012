"""Commands of one client's program in the order of their numbers, and their results.

A command that arrives early waits for the commands before it, and for the session to open. Results are kept after they
are read, because the program asks again if a response is lost.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rlrun.constants import CONFLICT, GONE, SESSION_MISSING, Reason
from rlrun.protocol.client_command import (
    GAP_SECONDS,
    MAX_POOL_BYTES,
    MAX_WAITING_BYTES,
    MAX_WAITING_COMMANDS,
    RESUMED_GAP_SECONDS,
    CommandPending,
    CommandState,
    ErrorCategory,
)
from rlrun.service.errors import ProblemError

from rlrun_trainer.sessions.client_session import ClientSession, Outcome, failed
from rlrun_trainer.sessions.received_command import ReceivedCommand
from rlrun_trainer.sessions.trained_runs import not_in_pool

log = logging.getLogger(__name__)

KEPT_RESULTS = 1024
KEPT_BYTES = 64 * 1024**2
"""Maximum total size of a run's kept results in bytes. A single result may exceed it."""
MAX_POLLS = 2 * MAX_WAITING_COMMANDS
"""Maximum number of a run's requests that wait for results. Further requests get an immediate response."""
MAX_REASON = 1024
HELD_SECONDS = 10.0
"""Seconds of waiting for other runs after which the response reports the wait to the user."""
TOO_MANY = 429


@dataclass(eq=False)
class _SequencedCommand:
    """Command with its result."""

    number: int
    digest: bytes
    received: ReceivedCommand | None
    """Command to execute, or None once it has been executed."""
    size: int
    result: bytes | None = None
    is_read: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)


class CommandSequence:
    """Commands of one run. Not thread-safe: use it on one event loop only."""

    def __init__(self, gap_seconds: float = GAP_SECONDS, pool_bytes: Callable[[], int] = lambda: 0) -> None:
        """`pool_bytes` returns the sum of `waiting_bytes` of all runs."""
        self._gap_seconds = gap_seconds
        self._pool_bytes = pool_bytes
        self._entries: dict[int, _SequencedCommand] = {}
        """Commands that are not complete, and commands whose result is kept, by number."""
        self._results: dict[int, _SequencedCommand] = {}
        """Commands whose result is kept, by number, in the order of completion."""
        self._dropped = 0
        """Largest number of a command whose result has been dropped."""
        self._first: int | None = None
        """Number of the first command that this process executes, or None until the session is open."""
        self._next: int | None = None
        self._session: ClientSession | None = None
        self._reading: dict[int, int] = {}
        """Number of bodies that are being read, by the number of the command."""
        self._reading_bytes = 0
        self._polls = 0
        self._arrived = asyncio.Event()
        self._closed = False
        self._lost: str | None = None
        """Reason why no further command is executed because the next one did not arrive, or None."""
        self._worker: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """True if the session executes no further command."""
        return self._session is not None and self._session.is_leaving

    @property
    def waiting_bytes(self) -> int:
        """Memory in bytes of the commands that are being read or are not complete."""
        return sum(entry.size for entry in self._entries.values()) + self._reading_bytes

    @contextlib.contextmanager
    def reading(self, number: int, size: int) -> Iterator[None]:
        """Context in which the body of a command is read. Raises ProblemError (`TooManyCommands`, 429) if the run, or
        the pool, has too many commands. The next command to execute is always read, since all others wait for it.
        """
        pending = [entry for entry in self._entries.values() if entry.result is None]
        count, waiting_bytes = len(pending) + sum(self._reading.values()), self.waiting_bytes
        is_next = number == self._next and number not in self._entries and number not in self._reading
        is_too_much = count >= MAX_WAITING_COMMANDS or waiting_bytes + size > MAX_WAITING_BYTES
        if not is_next and (is_too_much or self._pool_bytes() + size > MAX_POOL_BYTES):
            others = "" if is_too_much else ", and many calls of other models"
            raise ProblemError.of(
                TOO_MANY,
                Reason.TOO_MANY_COMMANDS,
                f"Too many calls are not complete: {count} of this model, with {waiting_bytes} bytes{others}. Send "
                "this call again later.",
            )
        self._reading[number] = self._reading.get(number, 0) + 1
        self._reading_bytes += size
        try:
            yield
        finally:
            self._reading_bytes -= size
            self._reading[number] -= 1
            if not self._reading[number]:
                del self._reading[number]

    def receive(self, number: int, received: ReceivedCommand) -> None:
        """Store a command for execution. A repetition of a received command has no effect. Raises ProblemError:
        `CommandConflict` (409) if the repetition has different content; `TokenInvalid` (401) if the run has left the
        pool; `TrainerStopping` (503) if the session executes no further command and the next session must receive it.
        """
        if self._closed:
            raise not_in_pool()
        entry = self._entries.get(number)
        if entry is not None:
            if entry.digest != received.digest:
                message = (
                    f"Call {number} of this model was already received with different content. Use the next number."
                )
                raise ProblemError.of(CONFLICT, Reason.COMMAND_CONFLICT, message)
            return
        if self._is_gone(number):
            return
        if self._session is not None:
            self._session.require_staying()
        entry = self._entries[number] = _SequencedCommand(number, received.digest, received, received.size)
        if self._lost is not None:
            self._finish(entry, failed(self._lost, ErrorCategory.server))
        elif self._first is not None and number < self._first:
            self._finish(entry, self._earlier_result())
        self._arrived.set()

    async def result(self, number: int, seconds: float) -> bytes | None:
        """Return the command's result, or None if there is none after `seconds`. Raises ProblemError (`CommandUnknown`,
        404, or `ResultGone`, 410).
        """
        entry = self._entries.get(number)
        if entry is None and self._is_gone(number):
            message = f"The result of call {number} is no longer kept. Read results sooner."
            raise ProblemError.of(GONE, Reason.RESULT_GONE, message)
        if entry is None:
            message = f"Call {number} was not received by this process of the trainer{self._resume_advice()}"
            raise ProblemError.of(SESSION_MISSING, Reason.COMMAND_UNKNOWN, message)
        if not entry.done.is_set() and self._polls < MAX_POLLS:
            self._polls += 1
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await entry.done.wait()
            finally:
                self._polls -= 1
        entry.is_read = entry.is_read or entry.result is not None
        return entry.result

    def pending(self, waits_for: str) -> CommandPending:
        """Return the response for a command that has no result yet. `waits_for` is the reason why the session is not
        open.
        """
        if self._session is None or self._session.is_leaving:
            return CommandPending(state=CommandState.paused_capacity, reason=waits_for[:MAX_REASON])
        if self._session.held_seconds >= HELD_SECONDS:
            return CommandPending(
                state=CommandState.paused_rate_limit, reason="the trainer is computing for other runs"
            )
        return CommandPending(state=CommandState.active)

    def start(self, session: ClientSession) -> None:
        """Start executing commands in the session."""
        self._session = session
        self._first = self._next = session.step + 1
        for entry in list(self._entries.values()):
            if entry.number < self._first:
                self._finish(entry, self._earlier_result())
        self._worker = asyncio.create_task(self._work(session), name=f"commands of {session.name}")

    def close(self) -> None:
        """Execute no command after the current one."""
        self._closed = True
        self._arrived.set()

    async def _work(self, session: ClientSession) -> None:
        while await self._wait_for_next():
            assert self._next is not None
            entry = self._entries[self._next]
            assert entry.received is not None
            try:
                outcome = await session.execute(entry.number, entry.received)
            except ProblemError as error:
                log.info("Session %s: command %d was not executed: %s", session.name, entry.number, error)
                return
            except Exception as error:
                # The commands after it would wait forever.
                log.exception("Session %s: command %d", session.name, entry.number)
                text = f"The trainer failed: {type(error).__name__}{self._resume_advice()}"
                outcome = failed(text, ErrorCategory.server)
            entry.received, entry.size = None, 0
            self._next += 1
            self._settle(entry, outcome)
            await session.save_due_copy()
        if not self._closed:
            self._fail_all()

    async def _wait_for_next(self) -> bool:
        """Wait for the next command. Returns False after `close`, or if the next command does not arrive in time while
        later ones wait.
        """
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        while not self._closed:
            if self._next in self._entries:
                return True
            if any(entry.received is not None for entry in self._entries.values()):
                deadline = deadline or loop.time() + self._gap()
                if loop.time() >= deadline:
                    return False
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
        return False

    def _gap(self) -> float:
        is_resumed = self._next == self._first and self._next != 1
        return min(self._gap_seconds, RESUMED_GAP_SECONDS) if is_resumed else self._gap_seconds

    def _settle(self, entry: _SequencedCommand, outcome: Outcome) -> None:
        if isinstance(outcome, bytes):
            self._finish(entry, outcome)
        else:
            outcome.add_done_callback(lambda task: None if task.cancelled() else self._finish(entry, task.result()))

    def _finish(self, entry: _SequencedCommand, result: bytes) -> None:
        """Keep the result. Beyond the limits, drop older results, starting with results that were read."""
        entry.result, entry.received, entry.size = result, None, 0
        entry.done.set()
        self._results[entry.number] = entry
        size = sum(len(kept.result or b"") for kept in self._results.values())
        while len(self._results) > 1 and (len(self._results) > KEPT_RESULTS or size > KEPT_BYTES):
            others = [kept for kept in self._results.values() if kept is not entry]
            dropped = next((kept for kept in others if kept.is_read), others[0])
            size -= len(dropped.result or b"")
            del self._results[dropped.number], self._entries[dropped.number]
            self._dropped = max(self._dropped, dropped.number)

    def _fail_all(self) -> None:
        """Fail all waiting commands, because the next command did not arrive."""
        waiting = [entry for entry in self._entries.values() if entry.received is not None]
        self._lost = (
            f"Call {self._next} of this model did not arrive within {self._gap():.0f} s, but later calls did "
            f"({len(waiting)}){self._resume_advice()}"
        )
        log.warning("%s", self._lost)
        for entry in waiting:
            self._finish(entry, failed(self._lost, ErrorCategory.server))

    def _is_gone(self, number: int) -> bool:
        """Return True if the command was executed or failed, and its result is no longer kept."""
        if self._first is None or self._next is None or number in self._entries:
            return False
        return self._first <= number < max(self._next, self._dropped + 1)

    def _earlier_result(self) -> bytes:
        """Return the result of a command that an earlier trainer process executed: an error, because the original
        result is lost.
        """
        text = f"The result of this call was lost, because the trainer was replaced{self._resume_advice()}"
        return failed(text, ErrorCategory.server)

    def _resume_advice(self) -> str:
        if self._session is None:
            return ". The trainer may have restarted. Create a new model from the newest saved state."
        return f". The model is in the state after call {self._session.step}. {self._session.newest_saved}."
