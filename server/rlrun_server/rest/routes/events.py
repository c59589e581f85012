"""Route that lists a run's Events, with the caller's permissions."""

from fastapi import APIRouter, Request
from rlrun.api.base.names import Namespace
from rlrun.api.base.schema import Schema
from rlrun.kube import requests
from rlrun.kube.kinds import EVENT
from rlrun.kube.objects import Obj
from starlette.responses import Response

from rlrun_server.rest.base.access import Caller, requires
from rlrun_server.rest.base.responses import UNCHANGED, RunName, if_changed, schema_response
from rlrun_server.rest.context.caller_cluster import caller_cluster
from rlrun_server.rest.context.services import services_of
from rlrun_server.rest.routes.runs import find_run

router = APIRouter(tags=["runs"])

MAX_EVENTS = 500


class RunEvent(Schema):
    """One Kubernetes Event about a run."""

    time: str
    """Time at which the Event was seen last."""
    type: str
    """Normal or Warning."""
    reason: str
    message: str
    count: int = 1


class EventList(Schema):
    """Events of a run, newest first. The API server keeps them for about an hour."""

    items: list[RunEvent]
    is_complete: bool
    """False if there are more Events than one response holds."""


@router.get("/namespaces/{namespace}/runs/{run}/events", response_model=EventList, responses=UNCHANGED)
async def list_events(
    request: Request, namespace: Namespace, run: RunName, caller: Caller = requires("list", "events", group="")
) -> Response:
    """List the Events of a run, newest first."""
    services = services_of(request)
    cluster = await caller_cluster(request, caller)
    uid = find_run(services, namespace, run).uid
    answer = await cluster.send(requests.list_selected(EVENT, namespace, f"involvedObject.uid={uid}", MAX_EVENTS))
    items = sorted(map(event_of, answer.get("items") or []), key=lambda event: event.time, reverse=True)
    is_complete = not (answer.get("metadata") or {}).get("continue")
    return if_changed(request, schema_response(EventList(items=items, is_complete=is_complete)))


def event_of(event: Obj) -> RunEvent:
    """Convert a Kubernetes Event to the API's format."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return RunEvent(
        time=str(next((time for time in times if time), event["metadata"].get("creationTimestamp") or "")),
        type=str(event.get("type") or "Normal"),
        reason=str(event.get("reason") or ""),
        message=str(event.get("message") or ""),
        count=int(series.get("count") or event.get("count") or 1),
    )
