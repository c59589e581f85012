"""Routes that read checkpoints and adapters."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field
from rlrun.api.base.names import Namespace
from rlrun.api.base.phases import ArtifactPhase
from rlrun.api.base.schema import Schema
from starlette.responses import Response

from rlrun_server.rest.base.access import Caller, requires
from rlrun_server.rest.base.pages import DEFAULT_LIMIT, MAX_CURSOR, MAX_LIMIT, page_of
from rlrun_server.rest.base.problems import not_found
from rlrun_server.rest.base.responses import UNCHANGED, ArtifactName, list_response, schema_response
from rlrun_server.rest.context.services import Services, services_of
from rlrun_server.rest.objects.kept_objects import KeptObject, KeptObjects
from rlrun_server.rest.objects.summaries import ArtifactSummary

router = APIRouter(tags=["artifacts"])


class ArtifactFilter(Schema):
    """Parameters that select checkpoints or adapters."""

    run: str | None = Field(default=None, max_length=64)
    """Name or uid of the run. The run may have been deleted."""
    phase: list[ArtifactPhase] = Field(default_factory=list, max_length=5)
    model: str | None = Field(default=None, max_length=200)
    """Id of the model."""


class ArtifactQuery(ArtifactFilter):
    """Parameters of a list of checkpoints or adapters."""

    limit: int = Field(default=DEFAULT_LIMIT, ge=1, le=MAX_LIMIT)
    cursor: str = Field(default="", max_length=MAX_CURSOR)
    """`next` of the previous page."""


class ArtifactList(Schema):
    """Page of checkpoints or adapters, newest first."""

    items: list[ArtifactSummary]
    total: int
    next: str | None = None
    is_complete: bool = True


class ArtifactDetail(Schema):
    """One checkpoint or adapter with its spec and status."""

    summary: ArtifactSummary
    spec: dict[str, Any]
    status: dict[str, Any]


@router.get("/namespaces/{namespace}/checkpoints", response_model=ArtifactList, responses=UNCHANGED)
async def list_checkpoints(
    request: Request,
    namespace: Namespace,
    query: Annotated[ArtifactQuery, Query()],
    caller: Caller = requires("list", "rlcheckpoints"),
) -> Response:
    """List the checkpoints of a namespace, newest first."""
    return _list(request, services_of(request).objects.checkpoints, namespace, query)


@router.get("/namespaces/{namespace}/adapters", response_model=ArtifactList, responses=UNCHANGED)
async def list_adapters(
    request: Request,
    namespace: Namespace,
    query: Annotated[ArtifactQuery, Query()],
    caller: Caller = requires("list", "rladapters"),
) -> Response:
    """List the adapters of a namespace, newest first."""
    return _list(request, services_of(request).objects.adapters, namespace, query)


@router.get("/namespaces/{namespace}/checkpoints/{name}", response_model=ArtifactDetail)
async def get_checkpoint(
    request: Request, namespace: Namespace, name: ArtifactName, caller: Caller = requires("get", "rlcheckpoints")
) -> Response:
    """Return a checkpoint."""
    return await _get(request, services_of(request).objects.checkpoints, namespace, name)


@router.get("/namespaces/{namespace}/adapters/{name}", response_model=ArtifactDetail)
async def get_adapter(
    request: Request, namespace: Namespace, name: ArtifactName, caller: Caller = requires("get", "rladapters")
) -> Response:
    """Return an adapter."""
    return await _get(request, services_of(request).objects.adapters, namespace, name)


def matches(artifact: ArtifactSummary, wanted: ArtifactFilter) -> bool:
    """Return whether the artifact matches the filter."""
    return (
        (wanted.run is None or wanted.run in (artifact.run, artifact.run_uid))
        and (not wanted.phase or artifact.phase in wanted.phase)
        and wanted.model in (None, artifact.model)
    )


def _list(request: Request, known: KeptObjects[ArtifactSummary], namespace: str, query: ArtifactQuery) -> Response:
    services_of(request).objects.require(known)
    filters = ArtifactFilter(run=query.run, phase=query.phase, model=query.model)
    page = page_of(
        [a for a in known.all() if a.namespace == namespace and matches(a.summary, filters)],
        lambda artifact: artifact.summary.created_at.timestamp(),
        lambda artifact: artifact.uid,
        descending=True,
        filters=filters,
        cursor=query.cursor,
        limit=query.limit,
    )
    return list_response(request, page, [artifact.text for artifact in page.rows])


def find_artifact(
    services: Services, known: KeptObjects[ArtifactSummary], namespace: str, name: str
) -> KeptObject[ArtifactSummary]:
    """Return the checkpoint or adapter with this name. Raises RestError."""
    services.objects.require(known)
    artifact = known.find(namespace, name)
    if artifact is None:
        raise not_found(f"{known.kind.kind} {namespace}/{name}")
    return artifact


def artifact_response(artifact: KeptObject[ArtifactSummary]) -> Response:
    """Return the response with a checkpoint or adapter."""
    obj = artifact.read()
    detail = ArtifactDetail(summary=artifact.summary, spec=obj.get("spec") or {}, status=obj.get("status") or {})
    return schema_response(detail)


async def _get(request: Request, known: KeptObjects[ArtifactSummary], namespace: str, name: str) -> Response:
    services = services_of(request)
    return artifact_response(await services.load(known, find_artifact(services, known, namespace, name)))
