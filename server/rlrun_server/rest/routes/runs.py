"""Routes that read runs."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BeforeValidator, Field, ValidationError
from rlrun.api.base.names import Namespace
from rlrun.api.base.phases import Phase
from rlrun.api.base.schema import Schema
from rlrun.api.run import RLRunSpec
from rlrun.api.toml.loader import TomlError, dumps
from starlette.responses import Response

from rlrun_server.rest.base.access import IDENTIFIED, Caller, requires
from rlrun_server.rest.base.pages import DEFAULT_LIMIT, MAX_CURSOR, MAX_LIMIT, Value, page_of
from rlrun_server.rest.base.problems import not_found
from rlrun_server.rest.base.responses import UNCHANGED, RunName, list_response, respond_unchanged, schema_response
from rlrun_server.rest.context.services import Services, services_of
from rlrun_server.rest.objects.kept_objects import KeptObject
from rlrun_server.rest.objects.summaries import RunSummary

router = APIRouter(tags=["runs"])

KeptRun = KeptObject[RunSummary]


class RunOrder(StrEnum):
    """Sort order of runs. A leading `-` reverses the order."""

    created = "created"
    newest = "-created"
    name = "name"
    name_reversed = "-name"
    reward = "reward"
    best = "-reward"
    step = "step"
    most_steps = "-step"


def require_date(value: object) -> object:
    """Return the value. Raises ValueError for text without a date, because pydantic reads a number as seconds since
    1970.
    """
    if isinstance(value, str) and not re.match(r"\d{4}-\d\d-\d\d", value):
        raise ValueError("must be a time such as 2026-01-31T12:00:00Z")
    return value


Since = Annotated[datetime, BeforeValidator(require_date)]


class RunFilter(Schema):
    """Parameters that select and sort runs."""

    phase: list[Phase] = Field(default_factory=list, max_length=7)
    """Phases. A run matches if it is in any of them."""
    model: str | None = Field(default=None, max_length=200)
    """Id of the model."""
    env: str | None = Field(default=None, max_length=128)
    """Name of an environment, or its id if it has no name."""
    name: str | None = Field(default=None, max_length=128)
    """Part of the name or display name. Case is ignored."""
    since: Since | None = None
    """Earliest creation time, as in 2026-01-31T12:00:00Z."""
    sort: RunOrder = RunOrder.newest


class RunQuery(RunFilter):
    """Parameters of a list of runs."""

    limit: int = Field(default=DEFAULT_LIMIT, ge=1, le=MAX_LIMIT)
    cursor: str = Field(default="", max_length=MAX_CURSOR)
    """`next` of the previous page."""


class RunList(Schema):
    """Page of runs."""

    items: list[RunSummary]
    total: int
    """Number of runs on all pages."""
    next: str | None = None
    """Cursor of the next page."""
    is_complete: bool = True
    """False if runs may be missing because there are too many namespaces to check them all."""


class RunDetail(Schema):
    """One run with its spec and status."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    """Version for If-Match, the same as in ETag."""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    summary: RunSummary
    spec: dict[str, Any]
    status: dict[str, Any]
    """Status with its conditions."""


class RunConfig(Schema):
    """Configuration of a run: as written, with all defaults, and as TOML."""

    spec: dict[str, Any]
    """Spec as the API server stores it."""
    resolved: dict[str, Any] | None = None
    """Spec with the defaults of all unset fields. Unset if the spec is not valid for this version."""
    environments: list[dict[str, Any]] = Field(default_factory=list)
    """Versions and digests of the environment packages, once they are known."""
    toml: str | None = None
    """Spec as a TOML file for `rlrun run`."""
    toml_problem: str | None = None
    """Reason why there is no TOML."""


VALUES: dict[str, Any] = {
    "created": lambda run: run.created_at.timestamp(),
    "name": lambda run: run.name,
    "reward": lambda run: run.reward,
    "step": lambda run: run.step,
}
"""Function that returns the sort key of a run, for each sort order."""


@router.get("/runs", response_model=RunList, responses=UNCHANGED)
async def list_all_runs(request: Request, query: Annotated[RunQuery, Query()], caller: Caller = IDENTIFIED) -> Response:
    """List the runs of all namespaces in which you may list rlruns."""
    services = services_of(request)
    services.objects.require(services.objects.runs)
    visible = await services.visible.of(caller.user)
    runs = [run for run in services.objects.runs.all() if run.namespace in visible.names]
    return _page(request, runs, query, is_complete=visible.is_complete)


@router.get("/namespaces/{namespace}/runs", response_model=RunList, responses=UNCHANGED)
async def list_runs(
    request: Request,
    namespace: Namespace,
    query: Annotated[RunQuery, Query()],
    caller: Caller = requires("list", "rlruns"),
) -> Response:
    """List the runs of a namespace."""
    services = services_of(request)
    services.objects.require(services.objects.runs)
    runs = [run for run in services.objects.runs.all() if run.namespace == namespace]
    return _page(request, runs, query, is_complete=True)


@router.get("/namespaces/{namespace}/runs/{run}", response_model=RunDetail, responses=UNCHANGED)
async def get_run(
    request: Request, namespace: Namespace, run: RunName, caller: Caller = requires("get", "rlruns")
) -> Response:
    """Return a run with spec, status and conditions."""
    services = services_of(request)
    kept_run = find_run(services, namespace, run)
    if (response := respond_unchanged(request, version_tag(str(kept_run.version)))) is not None:
        return response
    kept_run = await services.load(services.objects.runs, kept_run)
    return await services.show(caller.user.limited_as, kept_run, run_response, kept_run)


@router.get("/namespaces/{namespace}/runs/{run}/config", response_model=RunConfig)
async def get_config(
    request: Request, namespace: Namespace, run: RunName, caller: Caller = requires("get", "rlruns")
) -> Response:
    """Return the configuration of a run: as written, with all defaults, and as TOML."""
    services = services_of(request)
    kept_run = await load_run(services, namespace, run)

    def answer() -> Response:
        obj = kept_run.read()
        return schema_response(config_of(obj.get("spec") or {}, obj.get("status") or {}))

    return await services.show(caller.user.limited_as, kept_run, answer)


def find_run(services: Services, namespace: str, name: str) -> KeptRun:
    """Return the run with this name or uid. Raises RestError."""
    runs = services.objects.runs
    services.objects.require(runs)
    kept_run = runs.find(namespace, name) or runs.find_uid(namespace, name)
    if kept_run is None:
        raise not_found(f"Run {namespace}/{name}")
    return kept_run


async def load_run(services: Services, namespace: str, name: str) -> KeptRun:
    """Return the complete object of the run with this name or uid. Raises RestError."""
    return await services.load(services.objects.runs, find_run(services, namespace, name))


def run_response(run: KeptRun, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return the response with a run."""
    obj = run.read()
    metadata = obj["metadata"]
    version = str(metadata.get("resourceVersion") or "")
    detail = RunDetail(
        namespace=run.namespace,
        name=run.name,
        uid=run.uid,
        resource_version=version,
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        summary=run.summary,
        spec=obj.get("spec") or {},
        status=obj.get("status") or {},
    )
    return schema_response(detail, status, {"ETag": version_tag(version), **(headers or {})})


def version_tag(version: str) -> str:
    """Return the ETag of a run, by its resourceVersion."""
    return f'"{version}"'


def config_of(spec: dict[str, Any], status: dict[str, Any]) -> RunConfig:
    """Return the configuration of a run with this spec and status."""
    environments = [e for e in status.get("environments") or [] if isinstance(e, dict)]
    try:
        parsed = RLRunSpec.model_validate(spec, by_alias=True, by_name=False)
    except ValidationError as error:
        problem = f"the spec is not valid for this version of rlrun-server: {error.errors()[0]['msg']}"
        return RunConfig(spec=spec, environments=environments, toml_problem=problem)
    resolved = parsed.to_json_dict()
    try:
        return RunConfig(spec=spec, resolved=resolved, environments=environments, toml=dumps(parsed))
    except TomlError as error:
        return RunConfig(spec=spec, resolved=resolved, environments=environments, toml_problem=str(error))


def matches(run: RunSummary, wanted: RunFilter) -> bool:
    """Return whether the run matches the filter."""
    text = (wanted.name or "").lower()
    return (
        (not wanted.phase or run.phase in wanted.phase)
        and wanted.model in (None, run.model)
        and (wanted.env is None or wanted.env in run.environments)
        and (text in run.name.lower() or text in (run.display_name or "").lower())
        and (wanted.since is None or run.created_at >= in_utc(wanted.since))
    )


def in_utc(time: datetime) -> datetime:
    """Return the time with a time zone, which is UTC if it has none."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _page(request: Request, runs: Iterable[KeptRun], query: RunQuery, *, is_complete: bool) -> Response:
    filters = RunFilter(**{name: getattr(query, name) for name in RunFilter.model_fields})
    value_of = VALUES[query.sort.removeprefix("-")]

    def value(run: KeptRun) -> Value:
        sort_value: Value = value_of(run.summary)
        return sort_value

    page = page_of(
        [run for run in runs if matches(run.summary, filters)],
        value,
        lambda run: run.uid,
        descending=query.sort.startswith("-"),
        filters=filters,
        cursor=query.cursor,
        limit=query.limit,
    )
    return list_response(request, page, [run.text for run in page.rows], is_complete=is_complete)
