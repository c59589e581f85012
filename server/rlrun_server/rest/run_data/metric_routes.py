"""Routes that return a run's metrics, even after the run is deleted."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from rlrun.api.base.names import Namespace
from rlrun.api.base.schema import Schema
from starlette.responses import Response

from rlrun_server.rest.base.access import Caller, requires
from rlrun_server.rest.base.problems import invalid, not_found
from rlrun_server.rest.base.responses import (
    UNCHANGED,
    RunName,
    respond_unchanged,
    schema_response,
    tag_of,
)
from rlrun_server.rest.context.services import services_of
from rlrun_server.rest.context.stored_runs import uid_of_run
from rlrun_server.rest.metrics.metric_columns import MAX_NAME, MAX_STEP, MetricsAnswer, select_names, thin_columns
from rlrun_server.rest.metrics.metric_reader import Metrics

router = APIRouter(tags=["metrics"])

MAX_POINTS = 1000
DEFAULT_POINTS = 500
MAX_SERIES = 200


class MetricsQuery(Schema):
    """Parameters that select metrics."""

    name: list[Annotated[str, Field(min_length=1, max_length=MAX_NAME)]] = Field(default_factory=list, max_length=64)
    """Name of a metric, or a prefix and `*`. Repeatable. Defaults to all metrics."""
    min_step: int = Field(default=0, ge=0, le=MAX_STEP, alias="min_step")
    max_step: int = Field(default=MAX_STEP, ge=0, le=MAX_STEP, alias="max_step")
    points: int = Field(default=DEFAULT_POINTS, ge=1, le=MAX_POINTS)
    """Maximum number of points of a series. If there are more steps, they are combined into buckets with mean, minimum
    and maximum.
    """


class MetricNames(Schema):
    """Names of a run's metrics, without histograms."""

    namespace: str
    uid: str
    names: list[str]
    steps: int
    """Number of steps that have metrics."""
    last_step: int | None = None


@router.get("/namespaces/{namespace}/runs/{run}/metrics", response_model=MetricsAnswer, responses=UNCHANGED)
async def get_metrics(
    request: Request,
    namespace: Namespace,
    run: RunName,
    query: Annotated[MetricsQuery, Query()],
    caller: Caller = requires("get", "rlruns", "metrics"),
) -> Response:
    """Return metrics by step as columns."""
    services = services_of(request)
    found = await read_if_changed(request, namespace, run)
    if isinstance(found, Response):
        return found
    uid, tag, metrics = found
    names = select_names(metrics.columns, query.name)
    if len(names) > MAX_SERIES:
        raise invalid(
            f"{len(names)} metrics match, but a response has at most {MAX_SERIES}. Select fewer with `name`; "
            f"metrics/names lists them."
        )

    def answer() -> Response:
        thin = thin_columns(metrics.columns, names, query.min_step, query.max_step, query.points)
        body = thin.model_copy(update={"namespace": namespace, "uid": uid, "is_stale": metrics.is_stale})
        return schema_response(body, headers={"ETag": tag})

    # Many steps of many metrics take half a second, which would block the event loop.
    return await services.metrics.compute(caller.user.limited_as, answer)


@router.get("/namespaces/{namespace}/runs/{run}/metrics/names", response_model=MetricNames, responses=UNCHANGED)
async def get_metric_names(
    request: Request, namespace: Namespace, run: RunName, caller: Caller = requires("get", "rlruns", "metrics")
) -> Response:
    """Return the names of all metrics."""
    found = await read_if_changed(request, namespace, run)
    if isinstance(found, Response):
        return found
    uid, tag, metrics = found
    steps = metrics.columns.steps
    names = MetricNames(
        namespace=namespace,
        uid=uid,
        names=list(metrics.columns.values),
        steps=len(steps),
        last_step=steps[-1] if steps else None,
    )
    return schema_response(names, headers={"ETag": tag})


async def read_if_changed(request: Request, namespace: str, run: str) -> tuple[str, str, Metrics] | Response:
    """Return uid, ETag and metrics of the run with this name or uid, or a 304 response if the client has the current
    version. Raises RestError.
    """
    services = services_of(request)
    uid, exists = uid_of_run(services.objects, namespace, run)
    version = await services.metrics.read_version(namespace, uid)
    if version is None and not exists:
        raise not_found(f"Run {namespace}/{run}")
    # Columns of many runs do not fit into memory, so do not read them for a client that already has this version.
    if version is not None and (response := respond_unchanged(request, tag_of(uid.encode() + version))) is not None:
        return response
    metrics = await services.metrics.read(namespace, uid)
    tag = tag_of(uid.encode() + metrics.version)
    return respond_unchanged(request, tag) or (uid, tag, metrics)
