"""Requests to the API server with the permissions of the caller, so that the API server authorizes and audits them."""

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rlrun.constants import Reason
from rlrun.kube.async_transport import AsyncTransport
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest
from starlette.requests import Request

from rlrun_server.authentication.api_key import is_api_key
from rlrun_server.authentication.users import AUTHENTICATED, User, is_issuer_user
from rlrun_server.rest.base.access import Caller
from rlrun_server.rest.base.problems import RestError, from_api_error, from_own_api_error
from rlrun_server.rest.context.services import services_of


async def caller_cluster(request: Request, caller: Caller) -> "CallerCluster":
    """Return a client of the API server with the caller's permissions.

    A request with an API key uses a token of the key's ServiceAccount. A user from an OIDC issuer is impersonated.
    Raises RestError if API keys are read-only, ProblemError if the API server creates no token.
    """
    services = services_of(request)
    if services.impersonator is not None and is_issuer_user(caller.token):
        return CallerCluster(services.impersonator, impersonated=caller.user)
    if not is_api_key(caller.token):
        return CallerCluster(services.callers, caller.token)
    tokens = services.account_tokens
    if tokens is None:
        detail = (
            "API keys are read-only on this platform (users.apiKeysMayWrite=false in the chart). Use a Kubernetes "
            "token instead, or ask the platform team."
        )
        raise RestError(403, Reason.API_KEY_NOT_ALLOWED, detail)
    key_id = caller.user.api_key
    return CallerCluster(services.callers, await tokens.token(caller.user), lambda: tokens.forget(key_id))


class CallerCluster:
    """Client of the API server with the permissions of one caller. Methods raise RestError, except `stream`."""

    def __init__(
        self,
        transport: AsyncTransport,
        token: str = "",
        on_refused_token: Callable[[], None] | None = None,
        impersonated: User | None = None,
    ) -> None:
        """`transport` has no credentials or, if `impersonated` is set, the credentials of an account that may
        impersonate this user.

        `on_refused_token` is called if the API server does not accept the token.
        """
        self._transport = transport
        self._impersonated = impersonated
        self._token = token
        self._on_refused_token = on_refused_token

    async def send(self, request: KubeRequest, field: str = "") -> Obj:
        """Send a request and return the response. `field` has the same meaning as in `from_api_error`."""
        try:
            return await self._transport.send(self._authorize(request))
        except ApiError as error:
            raise self._rejection(error, field) from error

    async def find(self, request: KubeRequest) -> Obj | None:
        """Return the requested object, or None if it does not exist."""
        try:
            return await self._transport.send(self._authorize(request))
        except ApiError as error:
            if error.status == 404:
                return None
            raise self._rejection(error) from error

    @asynccontextmanager
    async def stream(self, request: KubeRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open the response as a stream of chunks. Raises ApiError, even while the response is read."""
        async with self._transport.stream(self._authorize(request)) as chunks:
            yield chunks

    def _rejection(self, error: ApiError, field: str = "") -> RestError:
        if error.status == 401 and self._on_refused_token is not None:
            self._on_refused_token()
        if self._impersonated is not None and (error.status == 401 or "cannot impersonate" in error.message):
            return from_own_api_error(error)
        return from_api_error(error, field)

    def _authorize(self, request: KubeRequest) -> KubeRequest:
        if self._impersonated is not None:
            # The API server adds the group of all users itself.
            groups = [group for group in self._impersonated.groups if group != AUTHENTICATED]
            named = ("Impersonate-User", self._impersonated.name)
            return dataclasses.replace(
                request, impersonation=(named, *(("Impersonate-Group", each) for each in groups))
            )
        headers = {**request.extra_headers, "Authorization": f"Bearer {self._token}"}
        return dataclasses.replace(request, extra_headers=headers)
