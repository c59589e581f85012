"""Usage of a shared pool's engine, by run. The sidecar queries the engine when Prometheus scrapes the sidecar."""

import asyncio
import logging
import time
from collections.abc import Callable

import aiohttp
from rlrun.api.base.received import limits_of
from rlrun.protocol.pool_usage import USAGE_PATH, PoolUsage
from rlrun.service.client import parse, request
from rlrun.service.errors import RequestError

QUERY_SECONDS = 2.0
"""Timeout of a query in seconds, well below Prometheus's scrape timeout (10 s by default)."""
FRESH_SECONDS = 1.0
"""Seconds for which a usage is reused for further scrapes. Scrapes need no token, so not every scrape may cause a
query.
"""

log = logging.getLogger(__name__)


class EngineUsageClient:
    """Client that queries the usage of the engine at `url`. At most one query is in progress."""

    def __init__(self, http: aiohttp.ClientSession, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`http` sends the pool's token. `clock` returns seconds."""
        self.current: PoolUsage | None = None
        """Usage at the last query, or None if there was no valid response."""
        self._http = http
        self._url = url.rstrip("/") + USAGE_PATH
        self._clock = clock
        self._ends = float("-inf")
        """Time until which `current` is fresh."""
        self._one_at_a_time = asyncio.Lock()

    async def refresh(self) -> None:
        """Query the engine unless `current` is fresh. A failure is logged and sets `current` to None."""
        async with self._one_at_a_time:
            if self._clock() < self._ends:
                return
            try:
                size = limits_of(PoolUsage).size
                body = await request(self._http, "GET", self._url, timeout=QUERY_SECONDS, max_bytes=size)
                self.current = parse(PoolUsage, body, self._url)
            except RequestError as error:
                self.current = None
                log.info("metrics of runs are missing until the engine returns its usage: %s", error)
            self._ends = self._clock() + FRESH_SECONDS
