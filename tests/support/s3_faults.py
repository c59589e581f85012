"""Faults of single calls to a real S3 server."""

import threading
from typing import Any

from botocore.exceptions import ClientError, EndpointConnectionError


class Crash(BaseException):
    """The process is no more."""


class Faults:
    """Counts a client's calls and lets one of them fail, before or after the server did what it was asked."""

    def __init__(self, client: Any, how: str) -> None:
        self.calls = 0
        self._at = 0
        self._how = how
        self._turn = threading.Lock()
        client.meta.events.register("before-call.s3", self._before)
        client.meta.events.register("after-call.s3", self._after)

    def arm(self, at: int) -> None:
        """Counts anew; call number `at` will fail."""
        self.calls, self._at = 0, at

    @property
    def struck(self) -> bool:
        """Whether the call was made."""
        return self.calls >= self._at

    def _before(self, context: dict[str, Any], **_: Any) -> None:
        with self._turn:
            self.calls += 1
            context["call"] = self.calls
        if self._how == "crash" and context["call"] >= self._at:
            raise Crash
        if self._how == "silence" and context["call"] == self._at:
            raise EndpointConnectionError(endpoint_url="http://nowhere")

    def _after(self, context: dict[str, Any], **_: Any) -> None:
        if self._how == "crash after" and context["call"] >= self._at:
            raise Crash
        if context["call"] != self._at:
            return
        if self._how == "lost answer":
            raise EndpointConnectionError(endpoint_url="http://nowhere")
        if self._how == "500":
            error = {"Error": {"Code": "InternalError"}, "ResponseMetadata": {"HTTPStatusCode": 500}}
            raise ClientError(error, "AnyOperation")
