"""Access control of the routes: the caller's identity, and the check that each route declares."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Depends
from rlrun.constants import GROUP, Reason
from rlrun.kube.errors import ApiError
from starlette.requests import Request

from rlrun_server.authentication.identification import Identification, not_reviewed
from rlrun_server.authentication.users import Check, User, Users
from rlrun_server.http.request import client_of, user_token_of
from rlrun_server.rest.base.problems import RestError
from rlrun_server.runtime.rate_limit import Rate, RateLimiter

log = logging.getLogger(__name__)

REQUESTS = Rate(per_second=20.0, burst=100.0)
"""Rate limit for requests, per user."""
REVIEWS = Rate(per_second=2 * REQUESTS.per_second, burst=500.0)
"""Rate limit for SubjectAccessReviews, per user. A request for one namespace needs at most two, but a list of all
namespaces needs one per namespace.
"""
VISIBLE = ("list", "rlruns")
"""Permission that makes a namespace visible to a user."""


@dataclass(frozen=True)
class Caller:
    """User who sent a request."""

    user: User
    token: str
    """Kubernetes token or API key. Never logged."""


class Access:
    """Identifies callers and checks their permissions."""

    def __init__(
        self, identification: Identification, users: Users, clock: Callable[[], float], rate: Rate = REQUESTS
    ) -> None:
        self._identification = identification
        self._users = users
        self._clock = clock
        self._requests = RateLimiter(rate)
        self._reviews = RateLimiter(REVIEWS)

    async def identify(self, request: Request) -> Caller:
        """Identify the sender of the request. Raises ProblemError, RestError."""
        token = user_token_of(request)
        user = await self._identification.identify(token, client_of(request))
        self.count(user)
        request.state.limited_as = user.limited_as
        return Caller(user, token)

    def count(self, user: User, requests: int = 1) -> None:
        """Count requests, or operations of equal cost, toward a user's rate limit. Raises RestError above the limit."""
        if not self._requests.allow(user.limited_as, self._clock(), requests):
            detail = (
                f"User {user.limited_as} sends more than {REQUESTS.per_second:.0f} requests per second. "
                "Retry the request later."
            )
            raise RestError(429, Reason.TOO_MANY_REQUESTS, detail)

    async def require(self, user: User, check: Check) -> None:
        """Check that the user has the permission. Raises RestError, ProblemError.

        The status is 404 for a namespace that is not visible to the user, so that its existence is not disclosed.
        """
        if await self.may(user, check):
            return
        verb, resource = VISIBLE
        if (check.verb, check.resource, check.subresource) != (verb, resource, "") and await self.may(
            user, Check(verb, resource, check.namespace)
        ):
            detail = f"User {user.name} may not {check}. Ask an administrator of the namespace for this permission."
            raise RestError(403, Reason.ACCESS_FORBIDDEN, detail)
        log.info("user %s may not %s", user.name, check)
        raise namespace_not_found(check.namespace)

    async def may(self, user: User, check: Check) -> bool:
        """Return whether the user has the permission. Raises RestError, and ProblemError if the API server does not
        respond.
        """
        (allowed,) = await self.may_each(user, [check])
        return allowed

    async def may_each(self, user: User, checks: Sequence[Check]) -> list[bool]:
        """Return for each check whether the user has the permission. Raises the same exceptions as `may`."""
        unknown = sum(not self._users.knows_permission(user, check) for check in checks)
        if unknown and not self._reviews.allow(user.limited_as, self._clock(), unknown):
            detail = (
                f"Requests of user {user.limited_as} need more than {REVIEWS.per_second:.0f} permission checks per "
                "second. Wait, and specify a namespace in your requests."
            )
            raise RestError(429, Reason.TOO_MANY_REQUESTS, detail)
        try:
            return await asyncio.gather(*(self._users.may(user, check) for check in checks))
        except ApiError as error:
            raise not_reviewed(error) from error


def namespace_not_found(namespace: str) -> RestError:
    """Return the error for a namespace that is not visible to the user."""
    detail = (
        f"Namespace {namespace} does not exist, or you may not list rlruns in it. GET /rlrun/v1/namespaces lists the "
        f"namespaces that are visible to you."
    )
    return RestError(404, Reason.NAMESPACE_NOT_FOUND, detail)


class Requirement:
    """Route dependency that identifies the caller and requires a permission in the namespace of the path."""

    def __init__(self, permission: Check) -> None:
        """`permission` is the permission without its namespace."""
        self.permission = permission

    async def __call__(self, request: Request) -> Caller:
        """Return the caller. Raises RestError, ProblemError."""
        access = access_of(request)
        caller = await access.identify(request)
        namespace = str(request.path_params["namespace"])
        await access.require(caller.user, replace(self.permission, namespace=namespace))
        return caller


class Identified:
    """Route dependency that identifies the caller and accepts any user."""

    async def __call__(self, request: Request) -> Caller:
        """Return the caller. Raises RestError, ProblemError."""
        return await access_of(request).identify(request)


class Anyone:
    """Route dependency that accepts requests without a credential."""

    async def __call__(self) -> None:
        """Accept the request."""


def requires(verb: str, resource: str, subresource: str = "", group: str = GROUP) -> Any:
    """Return a route dependency that requires this permission in the namespace of the path."""
    return Depends(Requirement(Check(verb, resource, "", subresource, group)))


IDENTIFIED: Any = Depends(Identified())
"""Route dependency that accepts any user. The response only contains what is visible to the user."""
ANYONE: Any = Depends(Anyone())
"""Route dependency of login and logout, which accept requests without a credential."""


def access_of(request: Request) -> Access:
    """Return the `Access` that the application uses."""
    access: Access = request.app.state.access
    return access
