"""Routes about the caller: identity, namespaces and models."""

from fastapi import APIRouter, Request
from rlrun.api.base.schema import Schema
from starlette.responses import Response

from rlrun_server.authentication.users import User
from rlrun_server.rest.base.access import IDENTIFIED, Caller
from rlrun_server.rest.base.responses import schema_response
from rlrun_server.rest.context.services import services_of
from rlrun_server.rest.objects.summaries import ModelSummary

router = APIRouter(tags=["identity"])


class Identity(Schema):
    """Identity of the caller as the API server sees it."""

    name: str
    uid: str = ""
    groups: list[str]
    api_key: str | None = None
    """Id of the API key of the request."""
    namespace: str | None = None
    """Namespace of the API key."""


class NamespaceSummary(Schema):
    """A namespace in which the caller may list rlruns."""

    name: str
    runs: int
    """Number of runs in the namespace."""


class NamespaceList(Schema):
    """Namespaces in which the caller may list rlruns."""

    items: list[NamespaceSummary]
    is_complete: bool
    """False if there are more namespaces than rlrun-server checks for one user."""


class ModelList(Schema):
    """Base models of the platform."""

    items: list[ModelSummary]


def identity_of(user: User) -> Identity:
    """Convert a user to the API's format."""
    return Identity(
        name=user.name,
        uid=user.uid,
        groups=list(user.groups),
        api_key=user.api_key or None,
        namespace=user.namespace or None,
    )


@router.get("/whoami", response_model=Identity)
async def whoami(caller: Caller = IDENTIFIED) -> Response:
    """Return your identity as the API server sees it."""
    return schema_response(identity_of(caller.user))


@router.get("/namespaces", response_model=NamespaceList)
async def list_namespaces(request: Request, caller: Caller = IDENTIFIED) -> Response:
    """List the namespaces that have runs or artifacts and in which you may list rlruns."""
    services = services_of(request)
    services.objects.require(services.objects.runs)
    visible = await services.visible.of(caller.user)
    counts = dict.fromkeys(visible.names, 0)
    for run in services.objects.runs.all():
        if run.namespace in counts:
            counts[run.namespace] += 1
    items = [NamespaceSummary(name=name, runs=count) for name, count in sorted(counts.items())]
    return schema_response(NamespaceList(items=items, is_complete=visible.is_complete))


@router.get("/models", response_model=ModelList)
async def list_models(request: Request, caller: Caller = IDENTIFIED) -> Response:
    """List the base models that runs may use."""
    objects = services_of(request).objects
    objects.require(objects.models)
    items = sorted((model.summary for model in objects.models.all()), key=lambda model: model.id)
    return schema_response(ModelList(items=items))
