"""Synchronous Kubernetes client for the command line.

Only the transport imports the official client, when it is used, because the import takes half a second.
"""

import builtins
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typing_extensions import override

from rlrun.kube import requests
from rlrun.kube.connection.connection_causes import cause_of
from rlrun.kube.errors import FAILED, UNREACHABLE, ApiError, find_log_error
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest

CONNECT_SECONDS = 5.0
RESPONSE_SECONDS = 60.0
LOG_CHUNK = 8192


class SyncTransport(ABC):
    """Base class for clients of an API server. Subclasses implement `send` and `stream`; the other methods use them."""

    @abstractmethod
    def send(self, request: KubeRequest) -> Obj:
        """Return the object in the response. Raises ApiError."""

    @abstractmethod
    def stream(self, request: KubeRequest) -> Iterator[bytes]:
        """Return the response as chunks of bytes. Raises ApiError, even while the chunks are being read."""

    def find(self, request: KubeRequest) -> Obj | None:
        """Send a request about one object. Returns None if the object does not exist.

        Raises ApiError, including for a kind that is not installed.
        """
        try:
            return self.send(request)
        except ApiError as error:
            if error.is_object_missing:
                return None
            raise

    def pages(self, request: KubeRequest) -> Iterator[Obj]:
        """Yield the pages of a list, starting with `request`. The list is complete if the iteration ends without
        ApiError.
        """
        following: KubeRequest | None = request
        while following is not None:
            page = self.send(following)
            yield page
            following = requests.next_page(following, page)

    def list(self, request: KubeRequest) -> tuple[builtins.list[Obj], str]:
        """Return all objects of a list, starting with the page of `request`, and the version from which a watch can
        start. Raises ApiError.
        """
        objects: builtins.list[Obj] = []
        version = ""
        for page in self.pages(request):
            objects += requests.parse_page(request, page)
            version = requests.version_of(page)
        return objects, version

    def events(self, request: KubeRequest) -> Iterator[tuple[str, Obj]]:
        """Yield type and object of each event of a watch, including bookmarks.

        Raises ApiError, with status 410 if the version is too old.
        """
        for line in _lines(self.stream(request)):
            if line.strip():
                yield requests.parse_event(request, line)

    def log(self, request: KubeRequest) -> Iterator[str]:
        """Yield the lines of a container's log. Raises ApiError."""
        for number, line in enumerate(_lines(self.stream(request))):
            error = find_log_error(line, str(request)) if number == 0 else None
            if error is not None:
                raise error
            yield line.decode("utf-8", "replace")


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines without newlines, including an unterminated last line."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    if rest:
        yield rest


class SyncApiTransport(SyncTransport):
    """Transport over HTTP through a `kubernetes.client.ApiClient`."""

    def __init__(
        self, api_client: Any, *, response_seconds: float = RESPONSE_SECONDS, total_seconds: float | None = None
    ) -> None:
        """`total_seconds` limits the total time for connecting and responding. If it is set, the separate limits for
        the two do not apply.
        """
        self._api = api_client
        self._response_seconds = response_seconds
        self._total_seconds = total_seconds

    @override
    def send(self, request: KubeRequest) -> Obj:
        with self._open(request) as response:
            return requests.parse_object(request, response.data)

    @override
    def stream(self, request: KubeRequest) -> Iterator[bytes]:
        with self._open(request) as response:
            yield from response.stream(LOG_CHUNK, decode_content=True)

    @contextmanager
    def _open(self, request: KubeRequest) -> Iterator[Any]:
        """Yield the unread response. Raises ApiError, including for failures while the caller reads the response."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        action = str(request)
        endless = request.query.get("follow") == "true"
        timeout = (CONNECT_SECONDS, None if endless else request.seconds or self._response_seconds)
        try:
            response = self._api.call_api(
                request.path,
                request.method,
                query_params=list(request.parameters.items()),
                header_params=request.headers,
                body=request.body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=self._total_seconds or timeout,
            )
            try:
                yield response
            finally:
                response.close()
        except ApiException as error:
            if error.status:
                raise ApiError.from_response(error.status, error.body, action) from None
            raise ApiError(0, FAILED, str(error.reason), action=action) from None
        except (HTTPError, OSError) as error:
            message = f"the API server at {self._api.configuration.host} does not respond ({cause_of(error)})"
            raise ApiError(0, UNREACHABLE, message, action=action) from error
