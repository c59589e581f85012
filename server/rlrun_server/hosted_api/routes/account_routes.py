"""Routes of the account, and answers for features that this platform does not have."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from rlrun_server.hosted_api.base.caller import KEY_IDENTIFIED, HostedCaller
from rlrun_server.hosted_api.base.errors import no_counterpart
from rlrun_server.hosted_api.base.wire import Json, json_object
from rlrun_server.rest.base.problems import not_found

router = APIRouter(tags=["account"])


@router.get("/user/whoami")
async def whoami(caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Return the account for which the API key stands."""
    name = caller.caller.user.name
    account: Json = {"id": caller.user_id, "email": None, "name": name, "slug": caller.namespace, "scope": {}}
    return json_object({"data": account})


@router.get("/user/teams")
async def list_teams(caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Return the namespace of the API key as the one team."""
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
    """Answer that there is no wallet."""
    raise no_counterpart("runs are not billed. The command usage shows the trained tokens of a run.")


@router.post("/feedback")
async def send_feedback(caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Answer that feedback goes nowhere."""
    raise no_counterpart("feedback reaches nobody here. Tell the platform team.")


@router.post("/training/runs")
async def create_dedicated_run(caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Answer that there are no dedicated runs."""
    raise no_counterpart(
        "dedicated runs (full fine-tuning, SFT) in the configuration of the trainer. Full fine-tuning is a field of a "
        "run: lora.enabled=false, with rlrun run."
    )


@router.get("/training/{path:path}")
async def discover_dedicated(request: Request, path: str, caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Answer that there is nothing to choose for dedicated runs."""
    raise not_found(f"/training/{path[:100]}")
