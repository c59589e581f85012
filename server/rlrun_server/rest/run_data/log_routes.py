"""Route that returns a run's logs."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from rlrun.api.base.names import Namespace
from rlrun.constants import Reason
from starlette.responses import Response

from rlrun_server.rest.base.access import Caller, requires
from rlrun_server.rest.base.problems import RestError, not_found
from rlrun_server.rest.base.responses import UNCHANGED, RunName, if_changed, schema_response
from rlrun_server.rest.context.caller_cluster import caller_cluster
from rlrun_server.rest.context.services import services_of
from rlrun_server.rest.context.stored_runs import UID
from rlrun_server.rest.logs.log_models import LogAnswer, LogQuery
from rlrun_server.rest.logs.log_reader import FINISHED, KnownRun

router = APIRouter(tags=["logs"])


@router.get("/namespaces/{namespace}/runs/{run}/logs", response_model=LogAnswer, responses=UNCHANGED)
async def get_logs(
    request: Request,
    namespace: Namespace,
    run: RunName,
    query: Annotated[LogQuery, Query()],
    caller: Caller = requires("get", "rlruns", "log"),
) -> Response:
    """Return lines of a run's logs, from its pods with your permissions, or from the copies in S3. Logs are read from
    S3 if the pods are gone or `attempt` is an earlier attempt. A deleted run must be named by its uid.
    """
    return if_changed(request, schema_response(await read_logs(request, caller, namespace, run, query)))


async def read_logs(request: Request, caller: Caller, namespace: str, run: str, query: LogQuery) -> LogAnswer:
    """Return log lines of the run with this name or uid. The route must check the permission.

    Raises RestError, ProblemError.
    """
    services = services_of(request)
    runs = services.objects.runs
    services.objects.require(runs)
    known = runs.find(namespace, run) or runs.find_uid(namespace, run)
    if known is None:
        if not UID.fullmatch(run):
            raise not_found(f"Run {namespace}/{run}")
        return await services.logs.read(caller.user, None, KnownRun(namespace, run), query)
    try:
        cluster = await caller_cluster(request, caller)
    except RestError as error:
        if error.reason != Reason.API_KEY_NOT_ALLOWED or known.summary.phase not in FINISHED:
            raise
        # The API key cannot be used to read pods, which are gone or will be soon.
        cluster = None
    known = await services.load(runs, known)
    known_run = KnownRun(namespace, known.uid, known.read(), known.summary)
    return await services.logs.read(caller.user, cluster, known_run, query)
