"""Requests to the API server with the token of a caller: the API server decides and its audit log names the user."""

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rlrun.constants import Reason
from rlrun.kube.async_client import AsyncTransport
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest
from starlette.requests import Request

from rlrun_server.api_key import is_api_key
from rlrun_server.rest.access import Caller
from rlrun_server.rest.problems import RestError, from_api_error
from rlrun_server.rest.services import services_of


async def caller_cluster(request: Request, caller: Caller) -> "CallerCluster":
    """Return the API server as the caller may use it. Raises RestError for an API key."""
    return CallerCluster(services_of(request).callers, caller)


class CallerCluster:
    """API server as one caller may use it. All errors are RestErrors."""

    def __init__(self, transport: AsyncTransport, caller: Caller) -> None:
        """`transport` has no credentials. Raises RestError for an API key, which the API server does not know."""
        if is_api_key(caller.token):
            detail = (
                "An API key is accepted for reading alone: the API server, which decides about this request, does not "
                "know it. Send a Kubernetes token instead."
            )
            raise RestError(403, Reason.API_KEY_NOT_ALLOWED, detail)
        self._transport = transport
        self._token = caller.token

    async def send(self, request: KubeRequest, field: str = "") -> Obj:
        """Return the API server's answer. `field`: as for `from_api_error`."""
        try:
            return await self._transport.send(self._authorized(request))
        except ApiError as error:
            raise from_api_error(error, field) from error

    async def find(self, request: KubeRequest) -> Obj | None:
        """Return the object, None if there is none."""
        try:
            return await self._transport.send(self._authorized(request))
        except ApiError as error:
            if error.status == 404:
                return None
            raise from_api_error(error) from error

    @asynccontextmanager
    async def stream(self, request: KubeRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open the answer as chunks. Raises RestError; ApiError while it is read."""
        async with self._transport.stream(self._authorized(request)) as chunks:
            yield chunks

    def _authorized(self, request: KubeRequest) -> KubeRequest:
        headers = {**request.extra_headers, "Authorization": f"Bearer {self._token}"}
        return dataclasses.replace(request, extra_headers=headers)
