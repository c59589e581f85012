"""Models that rlrun-server has opened for callers, cached briefly, and the heartbeats of their sessions."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rlrun.protocol.client_run import ClientModel, ModelId, SessionId
from rlrun_server.runtime.caches import ReviewCache

from rlrun_tinker.callers import CredentialHolder
from rlrun_tinker.errors import RETRYABLE, TinkerError
from rlrun_tinker.pool_trainer_client import CommandRejected, PoolTrainerClient, TrainerUnready
from rlrun_tinker.run_server import RunServer

OPEN_SECONDS = 30.0
"""Seconds for which a model with a trainer is cached. A revoked credential remains valid for this time."""
MIN_WAITING_SECONDS, MAX_WAITING_SECONDS = 0.25, 10.0
WAITING_SHARE = 0.125
"""Fraction of a waiting model's age for which it is cached, at least MIN_WAITING_SECONDS and at most
MAX_WAITING_SECONDS. A model waits a second or two if the pool has a slot, but may wait for hours in a queue of a
hundred models. rlrun-server limits the rate of requests per namespace.
"""
STALE_SECONDS = 1.0
"""Minimum age in seconds of a cached model before it is opened again because its trainer did not accept a request."""
KEPT_SECONDS = 3.0
"""Maximum wait in seconds for rlrun-server if a model was opened before. After this time, the cached model is used."""
SESSIONS = 10_000
"""Maximum number of sessions whose models are remembered for heartbeats."""
MAX_MODELS = 64
"""Maximum number of used models that are recorded for a session, and of model numbers that a search tries."""
SEARCH_SECONDS = 300.0
"""Seconds between two searches for models of a session that were opened by other replicas."""
MAX_GAP = 3
"""Number of consecutive missing models after which a search ends. The SDK numbers models without gaps, but a number
whose creation failed has no model.
"""
HEARTBEAT_SECONDS = 8.0
"""Time limit of a heartbeat in seconds. The SDK times out after 10 s."""


class OpenModels:
    """Models that callers have opened. A caller receives only what rlrun-server returned for the caller's own
    credential.
    """

    def __init__(self, server: RunServer, clock: Callable[[], float]) -> None:
        self._server = server
        self._models: ReviewCache[ClientModel] = ReviewCache(
            lambda model: model.trainer_url is not None and not model.has_ended, OPEN_SECONDS, clock, _waiting_seconds
        )

    async def open(self, caller: CredentialHolder, model: ModelId) -> ClientModel:
        """Return the model with its token. Raises TinkerError."""

        async def ask() -> ClientModel:
            opened = await self._server.open(caller, model)
            # Metadata may be large, and no caller of this function needs it.
            return opened.model_copy(update={"user_metadata": {}})

        key = _key(caller, model)
        try:
            async with asyncio.timeout(KEPT_SECONDS if self._models.has_accepted(key) else None):
                return await self._models.get(key, ask)
        except (TinkerError, TimeoutError) as error:
            # While rlrun-server does not respond, runs that it has opened go on.
            is_down = isinstance(error, TimeoutError) or error.status == 503
            kept = self._models.keep_accepted(key) if is_down else None
            if kept is None:
                raise
            return kept

    def forget(self, caller: CredentialHolder, model: ModelId) -> None:
        """Make `open` ask rlrun-server again, because the trainer did not accept the last request. rlrun-server limits
        the requests of a namespace, so all requests that wait for this trainer ask at most once per STALE_SECONDS
        between them.
        """
        self._models.expire(_key(caller, model), STALE_SECONDS)


def _waiting_seconds(model: ClientModel) -> float:
    age = (datetime.now(UTC) - model.created_at).total_seconds()
    return min(max(WAITING_SHARE * age, MIN_WAITING_SECONDS), MAX_WAITING_SECONDS)


def _key(caller: CredentialHolder, model: ModelId) -> bytes:
    return f"{caller.digest} {model}".encode()


@dataclass
class _Session:
    models: set[int] = field(default_factory=set)
    searched: float = float("-inf")


class Heartbeats:
    """Forwards the heartbeats of a session to the trainers of its models.

    A session is only an id. Its models are the ones that the caller used on this replica and the ones that a search
    finds.
    """

    def __init__(
        self, server: RunServer, models: OpenModels, trainers: PoolTrainerClient, clock: Callable[[], float]
    ) -> None:
        self._server = server
        self._models = models
        self._trainers = trainers
        self._clock = clock
        self._sessions: OrderedDict[tuple[str, SessionId], _Session] = OrderedDict()

    def remember(self, caller: CredentialHolder, model: ModelId) -> None:
        """Record that the caller uses the model."""
        known = self._session(caller, model.session).models
        if len(known) < MAX_MODELS:
            known.add(model.number)

    async def beat(self, caller: CredentialHolder, session: SessionId) -> None:
        """Forward a heartbeat to the trainers. Raises TinkerError."""
        known, has_touched = self._session(caller, session), False
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                await self._touch_all(caller, session, known.models)
                has_touched = bool(known.models)
                if self._clock() >= known.searched + SEARCH_SECONDS:
                    found = await self._search(caller, session, known)
                    known.models |= found
                    known.searched = self._clock()
                    await self._touch_all(caller, session, found)
        except TimeoutError:
            if not has_touched:
                raise TinkerError(503, "rlrun-server or a trainer does not respond.") from None
        except TinkerError as error:
            # The search is repeated with the next heartbeat.
            if not has_touched or error.status not in RETRYABLE:
                raise

    async def _search(self, caller: CredentialHolder, session: SessionId, known: _Session) -> set[int]:
        """Search rlrun-server for models of the session. Returns the numbers of active models that `known` lacks."""
        added = set[int]()
        number = missing = 0
        while missing < MAX_GAP and number < MAX_MODELS:
            if number not in known.models:
                try:
                    found = await self._server.read(caller, ModelId(session, number))
                except TinkerError as error:
                    if error.status != 404:
                        raise
                    missing += 1
                    number += 1
                    continue
                if not found.has_ended:
                    added.add(number)
            missing = 0
            number += 1
        return added

    async def _touch_all(self, caller: CredentialHolder, session: SessionId, numbers: set[int]) -> None:
        """Send a heartbeat to the trainer of each model. Removes ended and deleted models from `numbers`."""
        touched = (self._touch(caller, ModelId(session, number), numbers) for number in sorted(numbers))
        for error in await asyncio.gather(*touched, return_exceptions=True):
            if error is not None:
                raise error

    async def _touch(self, caller: CredentialHolder, model: ModelId, numbers: set[int]) -> None:
        try:
            opened = await self._models.open(caller, model)
        except TinkerError as error:
            if error.status != 404:
                raise
            numbers.discard(model.number)
            return
        if opened.has_ended:
            numbers.discard(model.number)
            return
        try:
            await self._trainers.touch(opened)
        except (TrainerUnready, CommandRejected):
            # The run is known to live: rlrun-server has opened it.
            self._models.forget(caller, model)

    def _session(self, caller: CredentialHolder, session: SessionId) -> _Session:
        key = (caller.digest, session)
        known = self._sessions.setdefault(key, _Session())
        self._sessions.move_to_end(key)
        while len(self._sessions) > SESSIONS:
            self._sessions.popitem(last=False)
        return known
