"""Session for kopf's requests: with the operator's credentials, and safe for objects that any user may write.

kopf parses responses of any size with `json.loads`, which fails at 1,000 levels of nesting. A tenant's run may have
`args` that are too large or nested too deeply, and kopf stops when it cannot read a list.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from kubernetes.aio import client
from rlrun.api.base.received import read_stored
from rlrun.kube.async_transport import READ_BUFFER, read_authorization, tls_context
from rlrun.kube.kinds import ALL
from typing_extensions import override

from rlrun_operator.runtime.metrics import API_REQUESTS

PLURALS = frozenset(kind.plural for kind in ALL.values())
MAX_PAGE_BYTES = 32 << 20
"""Maximum size in bytes of a response, and of one event of a watch. kopf's pages have 20 objects of at most 1.5 MB."""
SHALLOW = 500
"""Maximum number of opening brackets with which `json.loads` cannot exceed the recursion limit."""


class KopfSession:
    """The part of an aiohttp session that kopf uses."""

    def __init__(self, configuration: client.Configuration) -> None:
        self._configuration = configuration
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls_context(configuration)),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER,
            response_class=BoundedResponse,
        )
        self.headers: dict[str, str] = {}

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._session.closed

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def request(
        self, method: str, url: str, *, json: Any, headers: dict[str, str] | None, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Send a request with the current token, and count it. Raises aiohttp.ClientError or TimeoutError."""
        path, _, query = url.partition("?")
        kind = path.rpartition("/")[2]
        verb = "watch" if "watch=true" in query else "list" if kind in PLURALS else "get"
        API_REQUESTS.labels(verb, kind if kind in PLURALS else "discovery").inc()
        return await self._session.request(
            method,
            url,
            json=json,
            headers={**self.headers, **(headers or {}), **await read_authorization(self._configuration)},
            timeout=timeout,
            proxy=self._configuration.proxy,
            proxy_headers=self._configuration.proxy_headers,
            server_hostname=self._configuration.tls_server_name,
        )


class BoundedResponse(aiohttp.ClientResponse):
    """Response of at most MAX_PAGE_BYTES. Its JSON may be nested as deeply as the API server allows."""

    @override
    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        started = await super().start(connection)
        self.content = BoundedLines(self.content)  # type: ignore[assignment]
        return started

    @override
    async def json(self, **_: Any) -> Any:
        data = bytearray()
        async for chunk in self.content.iter_any():
            data += chunk
            _check_size(len(data))
        return read_stored(bytes(data))


class BoundedLines:
    """Response body that yields whole lines of JSON, none of which is nested too deeply for `json.loads`."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yield the lines. Raises aiohttp.ClientPayloadError for a line that is too long."""
        rest = b""
        async for chunk in self._content.iter_chunked(size):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield _shallow(line) + b"\n"
            _check_size(len(rest))
        yield _shallow(rest)


def _shallow(line: bytes) -> bytes:
    return line if line.count(b"{") + line.count(b"[") <= SHALLOW else json.dumps(read_stored(line)).encode()


def _check_size(size: int) -> None:
    if size > MAX_PAGE_BYTES:
        raise aiohttp.ClientPayloadError(f"the response is larger than {MAX_PAGE_BYTES >> 20} MiB")
