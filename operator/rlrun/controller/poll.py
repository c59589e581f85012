"""Asking a run's orchestrator how it is going."""

from typing import Protocol

import aiohttp
from pydantic import ValidationError

from rlrun.schema.wire import RunStatus

POLL_SECONDS = 3.0
MAX_BYTES = 1 << 20


class PollError(Exception):
    """The orchestrator did not answer, or not with a status."""


class Poller(Protocol):
    """Where statuses come from."""

    async def status(self, namespace: str, name: str) -> RunStatus:
        """The status of that run. Raises PollError."""


class HttpPoller:
    """`Poller` over HTTP, one connection pool for all runs."""

    def __init__(self, url_template: str) -> None:
        self._template = url_template
        self._session: aiohttp.ClientSession | None = None

    async def status(self, namespace: str, name: str) -> RunStatus:
        """See `Poller`."""
        if self._session is None:
            # A pod of an earlier attempt may have had the name's address: no connection outlives its poll by much.
            connector = aiohttp.TCPConnector(limit=64, keepalive_timeout=5, ttl_dns_cache=5)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=POLL_SECONDS), trust_env=False
            )
        url = self._template.format(namespace=namespace, name=name)
        try:
            async with self._session.get(url) as response:
                body = await response.content.read(MAX_BYTES)
                if response.status != 200:
                    raise PollError(f"{url} answers {response.status}")
                return RunStatus.model_validate_json(body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PollError(f"{url}: {type(error).__name__} {error}") from error
        except ValidationError as error:
            raise PollError(f"{url} answers something else than a status: {error.error_count()} errors") from error

    async def close(self) -> None:
        """Gives the connections back."""
        if self._session is not None:
            await self._session.close()
