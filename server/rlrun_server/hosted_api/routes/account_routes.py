"""Routes for the caller's account, and responses for features that this platform does not have."""

from fastapi import APIRouter
from starlette.responses import Response

from rlrun_server.hosted_api.base.caller import KEY_IDENTIFIED, HostedCaller
from rlrun_server.hosted_api.base.errors import no_counterpart
from rlrun_server.hosted_api.base.wire import Json, json_object

router = APIRouter(tags=["account"])


@router.get("/user/whoami")
async def whoami(caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Return the account of the API key."""
    name = caller.caller.user.name
    account: Json = {"id": caller.user_id, "email": None, "name": name, "slug": caller.namespace, "scope": {}}
    return json_object({"data": account})


@router.get("/user/teams")
async def list_teams(caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Return the namespace of the API key as the only team."""
    team = {
        "teamId": caller.namespace,
        "name": caller.namespace,
        "slug": caller.namespace,
        "role": "member",
        "createdAt": "",
    }
    return json_object({"data": [team], "total_count": 1})


@router.get("/billing/wallet")
async def get_wallet(caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Respond that there is no wallet."""
    raise no_counterpart("billing. The `usage` command shows the trained tokens of a run.")


@router.post("/feedback")
async def send_feedback(caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Respond that feedback is not supported."""
    raise no_counterpart("feedback. Contact the platform team.")
