"""Routes of streams: server-sent events of one run, and of the runs of a namespace."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from rlrun.api.base.names import Namespace
from starlette.responses import Response

from rlrun_server.rest.access import Caller, requires
from rlrun_server.rest.events import RunEvent
from rlrun_server.rest.responses import RunName
from rlrun_server.rest.streams.stream_models import (
    Bye,
    DeletedRun,
    LogLines,
    NamespaceStreamQuery,
    Reset,
    RunStreamQuery,
    StepMetrics,
    StepSummary,
)
from rlrun_server.rest.summaries import RunSummary

router = APIRouter(tags=["streams"])


class EventStream(Response):
    """Server-sent events."""

    media_type = "text/event-stream"


NAMESPACE_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"model": RunSummary | DeletedRun | Reset | Bye, "description": "Data of the events"}
}
RUN_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "model": RunSummary | StepMetrics | StepSummary | LogLines | RunEvent | Bye,
        "description": "Data of the events",
    }
}


@router.get("/namespaces/{namespace}/stream", responses=NAMESPACE_EVENTS, response_class=EventStream)
async def stream_namespace(
    request: Request,
    namespace: Namespace,
    query: Annotated[NamespaceStreamQuery, Query()],
    caller: Caller = requires("list", "rlruns"),
) -> Response:
    """Follow the runs of a namespace.

    Event `status` has the summary of a run that is new or has changed, `deleted` names one that is deleted. Open the
    stream before you list the runs, so that no change is missed. After `reset` list them again.
    """
    raise NotImplementedError


@router.get("/namespaces/{namespace}/runs/{run}/stream", responses=RUN_EVENTS, response_class=EventStream)
async def stream_run(
    request: Request,
    namespace: Namespace,
    run: RunName,
    query: Annotated[RunStreamQuery, Query()],
    caller: Caller = requires("get", "rlruns"),
) -> Response:
    """Follow a run.

    `metrics` needs `get rlruns/metrics`, `steps` needs `get rlruns/samples`, `log` needs `get rlruns/log` and your own
    right to read pods and their logs, `events` needs `list events`.
    """
    raise NotImplementedError
