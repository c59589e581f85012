"""Runs of a shared pool whose training loop is a client's program. The trainer itself opens their sessions."""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable

from rlrun.constants import LATER, Reason
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import ClientActivity
from rlrun.service.errors import ProblemError

from rlrun_trainer.artifacts.upload_queue import wait_after
from rlrun_trainer.sessions.client_session import ClientSession
from rlrun_trainer.sessions.command_sequence import CommandSequence
from rlrun_trainer.sessions.session_registry import Sessions
from rlrun_trainer.sessions.trained_runs import TrainedRuns, not_in_pool

log = logging.getLogger(__name__)

LONGEST_WAIT = 10.0
"""Maximum time in seconds until the next attempt to open a session that waits for a slot, S3 or a former session."""
LOADING = Problem(reason=Reason.TRAINER_LOADING, message="The base model is still loading.")


class ClientProgram:
    """Run whose training loop is a client's program."""

    def __init__(self, uid: str, clock: Callable[[], float], pool_bytes: Callable[[], int]) -> None:
        self.uid = uid
        self.sequence = CommandSequence(pool_bytes=pool_bytes)
        self.parsing = asyncio.Lock()
        """Lock that is held while a large command of the run is parsed, so that a run uses at most one thread."""
        self.session: ClientSession | None = None
        self.opening_problem: Problem | None = LOADING
        """Reason why the session is not open yet, or None if it is open or its first opening is in progress."""
        self.opening: asyncio.Task[None] | None = None
        self._clock = clock
        self._called_at = clock()
        self._first_saves = secrets.randbits(32)

    def on_call(self) -> None:
        """Record that the program has sent a request and is alive."""
        self._called_at = self._clock()

    @property
    def activity(self) -> ClientActivity:
        """State of the session for the operator."""
        session = self.session
        return ClientActivity(
            uid=self.uid,
            is_open=session is not None and not session.is_closed,
            calls=session.step if session is not None else 0,
            updates=session.updates if session is not None else 0,
            saves=self._first_saves + (session.uploads.uploaded if session is not None else 0),
            silent_seconds=max(0.0, self._clock() - self._called_at),
            problem=session.problem if session is not None else self.opening_problem,
        )


class ClientRuns:
    """Runs of clients' programs in the current `TrainerOrder`. Not thread-safe: use it on one event loop only."""

    def __init__(self, runs: TrainedRuns, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._runs = runs
        self._clock = clock
        self._clients: dict[str, ClientProgram] = {}

    def follow_order(self, sessions: Sessions | None) -> None:
        """Open the sessions of new runs in the background. `sessions` is None while the model is loading.

        The sessions of runs that left are closed by `Sessions.keep_only`. A run that comes back before that keeps its
        session and its commands.
        """
        wanted = {uid for uid in self._runs.uids if self._runs.require(uid).client is not None}
        for uid, client in list(self._clients.items()):
            left = uid not in wanted and (client.session is None or client.session.is_closed)
            if left or client.sequence.is_over:
                client.sequence.close()
                del self._clients[uid]
        for uid in wanted:
            client = self._clients.setdefault(uid, ClientProgram(uid, self._clock, self._waiting_bytes))
            if client.opening is None and sessions is not None:
                client.opening = asyncio.create_task(self._open(client, sessions), name=f"opening of {uid}")

    def find(self, uid: str) -> ClientProgram:
        """Return the run whose program has sent a request. Raises ProblemError (`TokenInvalid`, 401) if there is
        none.
        """
        client = self._clients.get(uid)
        if client is None or uid not in self._runs.uids:
            raise not_in_pool()
        client.on_call()
        return client

    @property
    def activities(self) -> list[ClientActivity]:
        """State of each run's session."""
        return [client.activity for uid, client in self._clients.items() if uid in self._runs.uids]

    def _waiting_bytes(self) -> int:
        return sum(client.sequence.waiting_bytes for client in self._clients.values())

    async def _open(self, client: ClientProgram, sessions: Sessions) -> None:
        """Open the session, with retries while the run is in the `TrainerOrder`."""
        failures, uid, task = 0, client.uid, asyncio.current_task()
        client.opening_problem = None
        # An error while a slot is released may replace the cancellation at the end of the process.
        while self._is_current(client) and task is not None and not task.cancelling():
            longest = math.inf
            try:
                spec = self._runs.require(uid).client
                assert spec is not None
                self._runs.check(uid, spec)
                session = await sessions.open_client(uid, spec, await self._runs.storage(uid))
            except ProblemError as error:
                client.opening_problem = error.problem
                longest = LONGEST_WAIT if error.status == LATER else longest
                log.info("Session %s cannot be opened yet: %s", uid, error)
            except Exception as error:
                log.exception("Session %s cannot be opened", uid)
                text = f"The session could not be opened: {type(error).__name__}: {error}"
                client.opening_problem = Problem(reason=Reason.TRAINER_ERROR, message=text)
            else:
                if self._is_current(client):
                    client.session, client.opening_problem = session, None
                    client.sequence.start(session)
                return
            failures += 1
            await asyncio.sleep(min(longest, wait_after(failures)))

    def _is_current(self, client: ClientProgram) -> bool:
        return self._clients.get(client.uid) is client and client.uid in self._runs.uids
