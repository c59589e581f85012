"""Routes of streams: server-sent events of one run, and of the runs of a namespace."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from rlrun.api.base.names import Namespace
from rlrun.service.errors import ProblemError
from starlette.responses import Response

from rlrun_server.authentication.users import Check
from rlrun_server.http.request import client_of
from rlrun_server.rest.base.access import Caller, requires
from rlrun_server.rest.base.responses import RunName
from rlrun_server.rest.context.caller_cluster import caller_cluster
from rlrun_server.rest.context.services import services_of
from rlrun_server.rest.logs.run_pods import LogCluster, select_roles
from rlrun_server.rest.objects.summaries import RunSummary
from rlrun_server.rest.routes.events import RunEvent
from rlrun_server.rest.routes.runs import KeptRun, find_run
from rlrun_server.rest.run_data.event_feed import EventFeed
from rlrun_server.rest.streams.client_stream import ClientStream
from rlrun_server.rest.streams.event_stream import EventStream
from rlrun_server.rest.streams.feed import Feed, StreamEnd
from rlrun_server.rest.streams.folder_feed import FolderFeed
from rlrun_server.rest.streams.log_feed import LogFeed
from rlrun_server.rest.streams.run_feeds import STATUS_LETTER, NamespaceFeed, StatusFeed
from rlrun_server.rest.streams.stream_cursor import decode_cursor
from rlrun_server.rest.streams.stream_models import (
    Bye,
    ByeReason,
    DeletedRun,
    LogLines,
    NamespaceStreamQuery,
    Reset,
    RunStreamQuery,
    StepMetrics,
    StepSummary,
    Topic,
)

router = APIRouter(tags=["streams"])

READ_PODS = (Check("list", "pods", "", group=""), Check("get", "pods", "", "log", group=""))
CHECKS: Mapping[Topic, Sequence[Check]] = {
    Topic.status: (),
    Topic.metrics: (Check("get", "rlruns", "", "metrics"),),
    Topic.steps: (Check("get", "rlruns", "", "samples"),),
    Topic.log: (Check("get", "rlruns", "", "log"), *READ_PODS),
    Topic.events: (Check("list", "events", "", group=""),),
}
"""Rights that a topic needs, besides `get rlruns`, in the namespace."""
LETTERS = {Topic.metrics: "m", Topic.steps: "t"}
NAMESPACE_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"model": RunSummary | DeletedRun | Reset | Bye, "description": "Data of the events"}
}
RUN_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "model": RunSummary | StepMetrics | StepSummary | LogLines | RunEvent | Bye,
        "description": "Data of the events",
    }
}


@router.get("/namespaces/{namespace}/stream", status_code=200, responses=NAMESPACE_EVENTS, response_class=EventStream)
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
    hub = services_of(request).streams
    services_of(request).objects.require(hub.runs)
    cursor, pointer = _cursor(request, query.last_event_id)
    feed = NamespaceFeed(hub.runs, hub.changes, namespace, cursor.get(STATUS_LETTER, ""), pointer)
    return _open(request, caller, [feed], [Check("list", "rlruns", namespace)])


@router.get(
    "/namespaces/{namespace}/runs/{run}/stream", status_code=200, responses=RUN_EVENTS, response_class=EventStream
)
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
    services = services_of(request)
    topics = [Topic(topic) for topic in dict.fromkeys(query.topics.split(","))]
    kept_run = find_run(services, namespace, run)
    checks = [replace(check, namespace=namespace) for topic in topics for check in CHECKS[topic]]
    for check in checks:
        await services.access.require(caller.user, check)
    cursor, pointer = _cursor(request, query.last_event_id)
    if Topic.log in topics:
        kept_run = await services.load(services.objects.runs, kept_run)
    feeds = _run_feeds(request, caller, kept_run, topics, query, cursor, pointer)
    checks.append(Check("get", "rlruns", namespace))
    return _open(request, caller, feeds, checks, with_log=Topic.log in topics)


def _run_feeds(
    request: Request,
    caller: Caller,
    run: KeptRun,
    topics: Sequence[Topic],
    query: RunStreamQuery,
    cursor: Mapping[str, str],
    pointer: str,
) -> list[Feed]:
    """Return the feeds of a stream. Raises RestError."""
    hub = services_of(request).streams
    status = StatusFeed(hub.runs, hub.changes, run.namespace, run.uid, is_shown=Topic.status in topics)
    status.resume(cursor.get(STATUS_LETTER, ""), pointer)
    feeds: list[Feed] = [status]

    async def cluster() -> LogCluster:
        return await caller_cluster(request, caller)

    for topic in topics:
        if topic in LETTERS:
            letter, tail = LETTERS[topic], hub.tail(run.namespace, run.uid, topic)
            feeds.append(FolderFeed(topic, letter, tail, cursor.get(letter, ""), pointer, query.after_step))
        elif topic is Topic.log:
            wanted = select_roles(query.role, query.env, run.read())
            place = (run.namespace, run.name, run.uid)
            feeds.append(LogFeed(cluster, hub.logs, place, wanted, cursor.get(LogFeed.letter, ""), pointer))
        elif topic is Topic.events:
            position = cursor.get(EventFeed.letter, "")
            feeds.append(EventFeed(cluster, run.namespace, run.uid, position, pointer))
    return feeds


def _open(
    request: Request, caller: Caller, feeds: Sequence[Feed], checks: Sequence[Check], *, with_log: bool = False
) -> Response:
    """Return the response with a stream. Raises RestError if the user has too many."""
    services, address = services_of(request), client_of(request)
    hub = services.streams

    async def confirm() -> None:
        try:
            is_allowed = await services.access.confirm(caller, address, checks)
        except ProblemError as error:
            if error.status != 401:
                raise
            is_allowed = False
        if not is_allowed:
            detail = "The credential has ended, or you do not have the right any more. Log in again."
            raise StreamEnd(ByeReason.unauthorized, detail)

    release = hub.take(caller.user, with_log=with_log)
    stream = ClientStream(feeds, confirm, hub.clock)
    hub.add(stream)

    def on_end() -> None:
        hub.remove(stream)
        release()

    return EventStream(stream, on_end)


def _cursor(request: Request, parameter: str | None) -> tuple[dict[str, str], str]:
    """Return the positions in the id of the last event, and where it is in the request. Raises RestError."""
    if parameter:
        return decode_cursor(parameter, "query/last_event_id"), "query/last_event_id"
    return decode_cursor(request.headers.get("last-event-id", ""), "header/Last-Event-ID"), "header/Last-Event-ID"
