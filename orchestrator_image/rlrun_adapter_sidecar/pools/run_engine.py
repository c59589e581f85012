"""One run's view of a pool's engine."""

import asyncio
import time
from collections.abc import Callable, Sequence

import aiohttp
from rlrun.protocol.shared_pool import engine_name
from rlrun.service.errors import ProblemError
from typing_extensions import override

from rlrun_adapter_sidecar.engine.vllm_client import PROBE_NAME, Engine

LISTING_SECONDS = 0.5
"""Seconds for which a list of adapters is reused for the polls of other runs."""


class EngineListing:
    """List of the adapters of all runs, which the runs' polls share. At most one request for it is in progress."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._listed: list[str] | ProblemError = []
        self._ends = float("-inf")
        """Time until which `_listed` is current."""
        self._changes = 0

    async def names(self) -> list[str]:
        """Return the names of the loaded adapters as of at most LISTING_SECONDS ago. Raises ProblemError."""
        async with self._one_at_a_time:
            if self._clock() >= self._ends:
                changes = self._changes
                try:
                    self._listed = await self._engine.adapters()
                except ProblemError as error:
                    self._listed = error
                if changes == self._changes:
                    self._ends = self._clock() + LISTING_SECONDS
            listed = self._listed
        if isinstance(listed, ProblemError):
            raise ProblemError(listed.status, listed.problem)
        return listed

    def expire(self) -> None:
        """Make the next poll query the engine, because its adapters have changed."""
        self._changes += 1
        self._ends = float("-inf")


class RunEngine(Engine):
    """Client for the adapters of one run. Names are relative to the run, so they never mean adapters of other runs."""

    def __init__(
        self, http: aiohttp.ClientSession, url: str, load_deadline: float, uid: str, listing: EngineListing
    ) -> None:
        super().__init__(http, url, load_deadline)
        self._uid = uid
        self._listing = listing

    @override
    async def adapters(self) -> list[str]:
        return self._own(await super().adapters())

    async def listed_adapters(self) -> list[str]:
        """Return the names of the loaded adapters from the listing that runs share."""
        return self._own(await self._listing.names())

    @override
    async def likely_tokens(self, model: str, prompts: Sequence[Sequence[int]]) -> list[dict[str, float]]:
        return await super().likely_tokens(engine_name(self._uid, model), prompts)

    @override
    async def load(self, name: str, path: str) -> None:
        try:
            await super().load(engine_name(self._uid, name), path)
        finally:
            self._listing.expire()

    @override
    async def unload(self, name: str) -> None:
        try:
            await super().unload(engine_name(self._uid, name))
        finally:
            self._listing.expire()

    def _own(self, names: Sequence[str]) -> list[str]:
        prefix = engine_name(self._uid, "")
        own = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        return [name for name in own if name != PROBE_NAME]
