"""Transport for the asynchronous client: credentials come from `kubernetes.aio`, and aiohttp sends the requests.

The official client is too slow. Its typed APIs parse every response into thousands of attributes. Its ApiClient copies
each body and searches for proxies and ~/.netrc in other threads, which takes half of the CPU time of a small request.
"""

import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client
from typing_extensions import override

from rlrun.kube import requests
from rlrun.kube.connection.cluster_clock import ClusterClock
from rlrun.kube.errors import TIMEOUT, TOO_LARGE, UNREACHABLE, ApiError
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest

REQUEST_SECONDS = 20.0
CONNECTIONS = 64
LOG_CHUNK = 1 << 16
RESPONSE_LIMIT = 32 << 20
"""Maximum size in bytes of a response, and of all pages about one run. Users can put a run's labels on objects of
1 MiB, and a page has 500 objects: without a limit, a user could make the operator run out of memory.
"""
ERROR_LIMIT = 1 << 20
"""Maximum number of bytes that are read from an error response."""
READ_BUFFER = 1 << 21
"""Size in bytes of the read buffer of a response. An event of a watch contains a whole object."""


class AsyncTransport(Protocol):
    """Interface that sends requests to an API server. Tests replace it."""

    async def send(self, request: KubeRequest) -> Obj:
        """Return the object in the response. Raises ApiError."""
        ...

    def stream(self, request: KubeRequest) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open the response as chunks of bytes. Raises ApiError, even while the chunks are being read."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class AsyncApiTransport(AsyncTransport):
    """Transport over HTTP, with the credentials of a kubernetes configuration."""

    def __init__(
        self,
        configuration: client.Configuration,
        connections: int = CONNECTIONS,
        on_request: Callable[[KubeRequest], None] | None = None,
        clock: ClusterClock | None = None,
    ) -> None:
        """`connections` is the maximum number of connections, beyond which requests wait; 0 means no limit.
        `on_request` is called before each request; if it raises, the request is not sent. Responses update `clock`.
        """
        self._configuration = configuration
        self._on_request = on_request or (lambda _: None)
        self._clock = clock or ClusterClock()
        self._host = str(configuration.host)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, ssl=tls_context(configuration)),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER,
        )

    @override
    async def close(self) -> None:
        await self._session.close()

    @override
    async def send(self, request: KubeRequest) -> Obj:
        async with self._open(request) as response:
            limit = request.limit_bytes or RESPONSE_LIMIT
            body, is_whole = await _read(response.content, limit)
            if not is_whole:
                raise too_large(request, limit)
            return requests.parse_object(request, body)

    @override
    @asynccontextmanager
    async def stream(self, request: KubeRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._open(request) as response:
            yield response.content.iter_chunked(LOG_CHUNK)

    @asynccontextmanager
    async def _open(self, request: KubeRequest) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the unread response. Raises ApiError, including for failures while the caller reads the response."""
        self._on_request(request)
        action, seconds = str(request), request.seconds or REQUEST_SECONDS
        headers = request.headers | await read_authorization(self._configuration)
        parameters, sent = request.parameters, self._clock.monotonic()
        try:
            response = await self._session.request(
                request.method,
                f"{self._host}{request.path}" + (f"?{urlencode(parameters)}" if parameters else ""),
                data=None if request.body is None else json.dumps(request.body).encode(),
                headers=[*headers.items(), *request.impersonation],
                timeout=aiohttp.ClientTimeout(total=seconds),
                proxy=self._configuration.proxy,
                proxy_headers=self._configuration.proxy_headers,
                server_hostname=self._configuration.tls_server_name,
            )
            try:
                if response.status >= 400:
                    body, _ = await _read(response.content, ERROR_LIMIT)
                    raise ApiError.from_response(response.status, body, action)
                # Ignore errors, which may come from a proxy with a different clock.
                self._clock.on_response(response.headers.get("Date"), sent)
                yield response
            finally:
                response.release()
        except TimeoutError:
            message = f"the API server at {self._host} did not respond within {seconds:.0f} s"
            raise ApiError(0, TIMEOUT, message, action=action) from None
        except aiohttp.ClientError as error:
            message = f"the API server at {self._host} does not respond ({error})"
            raise ApiError(0, UNREACHABLE, message, action=action) from error


async def read_authorization(configuration: client.Configuration) -> dict[str, str]:
    """Return the Authorization header with the current token, or no header if a client certificate is used."""
    token = (await configuration.auth_settings()).get("BearerToken")
    return {str(token["key"]): str(token["value"])} if token and token["value"] else {}


async def _read(content: aiohttp.StreamReader, limit: int) -> tuple[bytes, bool]:
    """Read at most `limit` bytes. Returns the body and whether it is complete."""
    data = bytearray()
    async for chunk in content.iter_any():
        data += chunk
        if len(data) > limit:
            return bytes(data[:limit]), False
    return bytes(data), True


def too_large(request: KubeRequest, limit: int) -> ApiError:
    """Return the error for a response that is larger than `limit` bytes."""
    message = f"the response has more than {limit / 2**20:.2g} MiB"
    if selector := request.query.get("labelSelector"):
        message += f". Delete the {request.kind.plural} that users have created with labels matching {selector}"
    return ApiError(0, TOO_LARGE, message, action=str(request))


def tls_context(configuration: client.Configuration) -> ssl.SSLContext:
    """Return a TLS context with the settings of the configuration."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.disable_strict_ssl_verification:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
