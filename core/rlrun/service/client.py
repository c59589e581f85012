"""Sends HTTP requests to the other processes of the project.

A request fails with `ServiceUnavailable` if there is no response or the server cannot handle it now (a retry may
succeed), and with `RequestRejected` if the server rejected it.
"""

import json
import re
import ssl
from collections.abc import AsyncIterable, Mapping
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import aiohttp
from pydantic import BaseModel

from rlrun.api.base import received
from rlrun.api.base.received import InputInvalid, limits_of
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.service.errors import RequestRejected, ServiceUnavailable

RETRYABLE_STATUSES = frozenset({408, 425, 429, 502, 503, 504})
JSON_HEADERS = {"Content-Type": "application/json"}
CONNECT_SECONDS = 5.0
TEXT_LIMIT = 500
"""Maximum number of characters that an error quotes from a server's response or a connection failure."""
RESPONSE_SECONDS = 3.0

_HOST = re.compile(r"[A-Za-z0-9_.:-]{1,253}")

M = TypeVar("M", bound=BaseModel)


class HttpClient:
    """Client of several servers with one connection pool, for small responses within `timeout` seconds."""

    def __init__(
        self, timeout: float = RESPONSE_SECONDS, connections: int = 64, tls: ssl.SSLContext | None = None
    ) -> None:
        """`tls` contains the certificates to trust for https. None trusts those of the image."""
        self._timeout = timeout
        self._connections = connections
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def call(
        self, method: str, url: str, model: type[M], body: Any = None, headers: Mapping[str, str] | None = None
    ) -> M:
        """Send `body` as JSON and return the response as `model`. Raises RequestError.

        The error quotes the server's response only if the response is a `Problem`. A user could point a Service to a
        different server, and must not read its responses in errors.
        """
        return parse(model, await self.fetch(method, url, limits_of(model).size, body, headers), f"{method} {url}")

    async def fetch(
        self, method: str, url: str, max_bytes: int, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Send `body` as JSON and return the response. Raises RequestError, including for one above `max_bytes`."""
        if self._session is None:
            # Pods are replaced under the same name and address, so keep connections and DNS responses only briefly.
            connector = aiohttp.TCPConnector(
                limit=self._connections, keepalive_timeout=5, ttl_dns_cache=5, ssl=self._tls or True
            )
            # A compressed response could expand to a thousand times its size.
            self._session = aiohttp.ClientSession(
                connector=connector, trust_env=False, auto_decompress=False, headers={"Accept-Encoding": "identity"}
            )
        data = None if body is None else json.dumps(body).encode()
        return await request(
            self._session,
            method,
            url,
            body=data,
            timeout=self._timeout,
            max_bytes=max_bytes,
            quote_text=False,
            headers=headers,
        )

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


async def request(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    body: bytes | AsyncIterable[bytes | memoryview] | None = None,
    timeout: float,
    max_bytes: int,
    quote_text: bool = True,
    headers: Mapping[str, str] | None = None,
    proxy: str | None = None,
) -> bytes:
    """Send one request and return the body of the successful response. Redirects are errors.

    Waits at most `timeout` seconds. If `quote_text` is true, the error contains the text of a response that is not a
    `Problem`. `headers` are added to the session's headers; the default content type of a body is JSON. An iterable
    body is sent in chunks unless `headers` contain its Content-Length.

    Raises ServiceUnavailable if a retry may succeed, otherwise RequestRejected, including for a response of more than
    `max_bytes`, of which little more than `max_bytes` is read.
    """
    limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(CONNECT_SECONDS, timeout))
    sent = {**(JSON_HEADERS if body is not None else {}), **(headers or {})}
    try:
        async with session.request(
            method, url, data=body, headers=sent, timeout=limits, allow_redirects=False, proxy=proxy
        ) as response:
            data = await read_body(response, url, max_bytes)
            if response.status < 300:
                return data
            if response.status < 400:
                raise RequestRejected(redirect_problem(response, url), response.status)
            problem = problem_from_response(response.status, data, url, quote_text=quote_text)
            error_class = ServiceUnavailable if response.status in RETRYABLE_STATUSES else RequestRejected
            raise error_class(problem, response.status)
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        message = f"{method} {url}: {failure_text(error)}"[:TEXT_LIMIT]
    raise ServiceUnavailable(Problem(reason=Reason.UNREACHABLE, message=message))


async def read_body(response: aiohttp.ClientResponse, url: str, limit: int) -> bytes:
    """Return the body of a response. Raises RequestRejected if it has more than `limit` bytes."""
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > limit:
            message = f"the response of {url} is larger than {limit} bytes"
            raise RequestRejected(Problem(reason=Reason.ANSWER_TOO_LARGE, message=message), response.status)
    return bytes(data)


def parse(model: type[M], data: bytes, source: str) -> M:
    """Parse a response as `model`. Raises RequestRejected if it does not match, for example because the server has a
    different version.
    """
    try:
        return received.parse(model, data)
    except InputInvalid as error:
        message = (
            f"the response of {source} is not a valid {model.__name__}, possibly because the server runs a different "
            f"version: {error.unquoted}"
        )
    raise RequestRejected(Problem(reason=Reason.ANSWER_INVALID, message=message))


def problem_from_response(status: int, body: bytes, url: str, *, quote_text: bool = True) -> Problem:
    """Return the `Problem` in the body of an error response, or else one with the status and, if `quote_text` is true,
    the beginning of the body.
    """
    try:
        return received.parse(Problem, body)
    except InputInvalid:
        text = body[: 4 * TEXT_LIMIT].decode("utf-8", "replace")[:TEXT_LIMIT]
        message = f"{url} responded with {status}{f': {text}' if quote_text else ''}"
        return Problem(reason=f"HTTP{status}", message=message)


def redirect_problem(response: aiohttp.ClientResponse, place: str) -> Problem:
    """Return the problem to report for a response that is a redirect. The problem quotes only the target host from the
    response.
    """
    try:
        host = urlsplit(urljoin(str(response.url), response.headers.get("Location", ""))).hostname or ""
    except ValueError:
        host = ""
    target = host if _HOST.fullmatch(host) else "an invalid address"
    message = (
        f"{place} responded with {response.status}, a redirect to {target}. Redirects are not followed: use the final "
        "URL"
    )
    return Problem(reason=f"HTTP{response.status}", message=message)


def failure_text(error: Exception) -> str:
    """Describe a failed connection. Protocol errors are not quoted, because they may contain text from the server."""
    text = str(error)[:TEXT_LIMIT] if isinstance(error, OSError) else ""
    return text or type(error).__name__
