"""HTTP requests to the other processes of the project.

A request fails with `ServiceUnavailable` if there is no response or the server cannot serve it now, so that it may
succeed later, and with `RequestRejected` if the server rejected it.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.service.errors import RequestRejected, ServiceUnavailable

RETRYABLE_STATUSES = frozenset({408, 425, 429, 502, 503, 504})
CONNECT_SECONDS = 5.0
TEXT_LIMIT = 500
"""Maximum length of the text of an error."""
RESPONSE_SECONDS = 3.0
RESPONSE_BYTES = 1 << 20
"""Maximum size of a response to `HttpClient`."""

M = TypeVar("M", bound=BaseModel)


class HttpClient:
    """Client of several servers with one connection pool, for small responses within `timeout` seconds."""

    def __init__(self, timeout: float = RESPONSE_SECONDS) -> None:
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def call(
        self, method: str, url: str, model: type[M], body: Any = None, headers: Mapping[str, str] | None = None
    ) -> M:
        """Send `body` as JSON and return the response as `model`. Raises RequestError."""
        if self._session is None:
            # Pods are replaced under the same name and address, so connections and DNS answers are kept only briefly.
            connector = aiohttp.TCPConnector(limit=64, keepalive_timeout=5, ttl_dns_cache=5)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        data = None if body is None else json.dumps(body).encode()
        response = await request(
            self._session, method, url, body=data, timeout=self._timeout, max_bytes=RESPONSE_BYTES, headers=headers
        )
        return parse(model, response, f"{method} {url}")

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


async def request(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    body: bytes | None = None,
    timeout: float,
    max_bytes: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Send one request and return the body of the successful response. `headers` are added to those of the session.

    Waits `timeout` seconds at most and reads little more than `max_bytes`. Raises ServiceUnavailable, RequestRejected.
    """
    limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(CONNECT_SECONDS, timeout))
    sent = {**(headers or {}), **({"Content-Type": "application/json"} if body is not None else {})}
    try:
        async with session.request(method, url, data=body, headers=sent, timeout=limits) as response:
            data = await _read(response, url, max_bytes)
            if response.status < 400:
                return data
            problem = problem_from_response(response.status, data, url)
            error_class = ServiceUnavailable if response.status in RETRYABLE_STATUSES else RequestRejected
            raise error_class(problem, response.status)
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        message = f"{method} {url}: {str(error) or type(error).__name__}"[:TEXT_LIMIT]
        raise ServiceUnavailable(Problem(reason=Reason.UNREACHABLE, message=message)) from error


async def _read(response: aiohttp.ClientResponse, url: str, limit: int | None) -> bytes:
    if limit is None:
        return await response.read()
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > limit:
            message = f"the response of {url} is larger than {limit} bytes"
            raise RequestRejected(Problem(reason=Reason.ANSWER_TOO_LARGE, message=message), response.status)
    return bytes(data)


def parse(model: type[M], data: bytes, source: str) -> M:
    """Read a response as `model`. Raises RequestRejected if it does not match, for example from another version."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        message = (
            f"the response of {source} is not a valid {model.__name__} of this version: {error.errors()[0]['msg']}"
        )
        raise RequestRejected(Problem(reason=Reason.ANSWER_INVALID, message=message)) from error


def problem_from_response(status: int, body: bytes, url: str) -> Problem:
    """Return the `Problem` in the body of an error, or one made of its status and text."""
    try:
        return Problem.model_validate_json(body)
    except ValidationError:
        text = body.decode("utf-8", "replace")[:TEXT_LIMIT]
        return Problem(reason=f"HTTP{status}", message=f"{url} responded with {status}: {text}")
