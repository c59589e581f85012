"""Route of a run's logs."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from rlrun.api.base.names import Namespace
from starlette.responses import Response

from rlrun_server.rest.access import Caller, requires
from rlrun_server.rest.logs.log_models import LogAnswer, LogQuery
from rlrun_server.rest.responses import JSON, RunName

router = APIRouter(tags=["logs"])


@router.get("/namespaces/{namespace}/runs/{run}/logs", responses={200: {"model": LogAnswer}}, response_class=JSON)
async def get_logs(
    request: Request,
    namespace: Namespace,
    run: RunName,
    query: Annotated[LogQuery, Query()],
    caller: Caller = requires("get", "rlruns", "log"),
) -> Response:
    """Return lines of a run's processes: of its pods, with your own token, or of the copies in S3.

    A run whose pods are gone, or `attempt` of an earlier attempt, is read from S3. A deleted run is read by its uid.
    """
    raise NotImplementedError
