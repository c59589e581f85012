"""Questions to a run's own processes over HTTP: an answer of the expected shape within seconds, or PollError."""

from typing import Any, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

POLL_SECONDS = 3.0
MAX_BYTES = 1 << 20
QUOTED = 200

Answer = TypeVar("Answer", bound=BaseModel)


class PollError(Exception):
    """Nobody answered, or not with what was asked for."""


class Questioner:
    """One connection pool for everybody who is asked."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, method: str, url: str, shape: type[Answer], body: Any = None) -> Answer:
        """The answer, read as `shape`. Raises PollError."""
        if self._session is None:
            # Names and addresses pass from one pod to the next: no connection outlives its question by much.
            connector = aiohttp.TCPConnector(limit=64, keepalive_timeout=5, ttl_dns_cache=5)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=POLL_SECONDS), trust_env=False
            )
        asked = f"{method} {url}"
        try:
            async with self._session.request(method, url, json=body) as response:
                data = await response.content.read(MAX_BYTES)
                if response.status != 200:
                    raise PollError(f"{asked} answers {response.status}: {data[:QUOTED].decode(errors='replace')}")
                return shape.model_validate_json(data)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PollError(f"{asked}: {type(error).__name__} {error}") from error
        except ValidationError as error:
            raise PollError(f"{asked} answers no {shape.__name__}: {error.error_count()} errors") from error

    async def close(self) -> None:
        """Gives the connections back."""
        if self._session is not None:
            await self._session.close()
