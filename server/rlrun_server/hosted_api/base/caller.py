"""Callers of the hosted API, each with the API key of one namespace."""

from dataclasses import dataclass, replace
from typing import Any

from fastapi import Depends
from rlrun.constants import GROUP, Reason
from starlette.requests import Request

from rlrun_server.authentication.users import Check
from rlrun_server.hosted_api.base.wire import user_id_of
from rlrun_server.rest.base.access import Caller, access_of
from rlrun_server.rest.base.problems import RestError

TEAM_PARAMETERS = ("team_id", "teamId")


@dataclass(frozen=True)
class HostedCaller:
    """Sender of a request, with the namespace of its API key."""

    caller: Caller
    namespace: str

    @property
    def user_id(self) -> str:
        """Id that represents the user to clients. All API keys of a namespace share one id."""
        return user_id_of(self.caller.user.name)

    def require_team(self, team: str | None) -> None:
        """Check that the team is the caller's namespace or unset. Raises RestError."""
        if team and team != self.namespace:
            detail = (
                f"Team {team[:64]} does not exist, or this API key does not belong to it. The key belongs to team "
                f"{self.namespace}: omit the team, or use another key."
            )
            raise RestError(404, Reason.OBJECT_NOT_FOUND, detail)


class KeyIdentified:
    """Route dependency that accepts any API key."""

    async def __call__(self, request: Request) -> HostedCaller:
        """Return the caller. Raises RestError, ProblemError."""
        caller = await access_of(request).identify(request)
        if not caller.user.namespace:
            detail = (
                "This path requires an API key (rlrun key create). Kubernetes tokens are not accepted below /api/v1."
            )
            raise RestError(401, Reason.TOKEN_INVALID, detail)
        hosted = HostedCaller(caller, caller.user.namespace)
        for name in TEAM_PARAMETERS:
            hosted.require_team(request.query_params.get(name))
        return hosted


class KeyRequirement(KeyIdentified):
    """Route dependency that requires a permission in the namespace of the API key."""

    def __init__(self, permission: Check) -> None:
        """`permission` is the permission without its namespace."""
        self.permission = permission

    async def __call__(self, request: Request) -> HostedCaller:
        """Return the caller. Raises RestError, ProblemError."""
        hosted = await super().__call__(request)
        permission = replace(self.permission, namespace=hosted.namespace)
        await access_of(request).require(hosted.caller.user, permission)
        return hosted


def key_requires(verb: str, resource: str, subresource: str = "", group: str = GROUP) -> Any:
    """Return a route dependency that requires this permission in the namespace of the API key."""
    return Depends(KeyRequirement(Check(verb, resource, "", subresource, group)))


KEY_IDENTIFIED: Any = Depends(KeyIdentified())
"""Route dependency that accepts any API key."""
